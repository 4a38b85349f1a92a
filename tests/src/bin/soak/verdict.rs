//! Figures, and what to make of them.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

use super::daemon::Daemon;
use super::load::Load;
use super::reload::Reloads;

/// What may come on top of the memory in the middle: pages that are touched late.
const SLACK_KIB: u64 = 4 << 10;

/// Figures of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    seconds: u64,
    kib: u64,
    files: usize,
    /// Decisions over RESP, HTTP and gRPC.
    decisions: [u64; 3],
    vanished: u64,
    /// Policies taken over and refused.
    reloads: [u32; 2],
}

impl Sample {
    pub(crate) fn take(
        load: &Load,
        daemon: &Daemon,
        (reloads, seconds): (&Reloads, u64),
    ) -> io::Result<Self> {
        let decisions = [&load.resp, &load.http, &load.grpc];
        Ok(Self {
            seconds,
            kib: daemon.resident_kib()?,
            files: daemon.files(),
            decisions: decisions.map(|count| count.load(Ordering::Relaxed)),
            vanished: load.vanished.load(Ordering::Relaxed),
            reloads: [reloads.taken, reloads.refused],
        })
    }
}

/// The names of the columns.
pub(crate) fn heading() -> String {
    format!(
        "{:>6} {:>8} {:>6} {:>11} {:>11} {:>11} {:>9} {:>8} {:>8}",
        "s", "KiB", "files", "RESP", "HTTP", "gRPC", "vanished", "reloads", "refused"
    )
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([resp, http, grpc], [taken, refused]) = (self.decisions, self.reloads);
        let (seconds, kib, files, vanished) = (self.seconds, self.kib, self.files, self.vanished);
        write!(
            f,
            "{seconds:>6} {kib:>8} {files:>6} {resp:>11} {http:>11} {grpc:>11} {vanished:>9} \
             {taken:>8} {refused:>8}"
        )
    }
}

/// Flat is: the middle of the last third is no more than that of the third before. By then every key
/// of the window has been asked for.
pub(crate) fn judge(
    samples: &[Sample],
    (idle_files, last_files): (usize, usize),
    wrong: &[String],
) -> Result<String, String> {
    let third = samples.len() / 3;
    let (Some(last), true) = (samples.last(), third >= 2) else {
        return Err(format!("too short to say anything: {}", wrong.join("; ")));
    };
    let [before, late] = [
        &samples[samples.len() - 2 * third..samples.len() - third],
        &samples[samples.len() - third..],
    ]
    .map(median_kib);
    let most = samples.iter().map(|sample| sample.kib).max().unwrap_or_default();
    let is_flat = late <= before + before / 50 + SLACK_KIB;
    let is_closed = last_files <= idle_files;
    let were_asked = last.decisions.iter().all(|count| *count > 0) && last.reloads[0] > 0;
    let told = format!(
        "{}\n{last}\nmemory: median {before} KiB in the second third, {late} KiB in the last, \
         {most} KiB at most: {}\nfiles: {idle_files} before, {last_files} after all clients went: {}\n\
         errors: {}\n{}",
        heading(),
        if is_flat { "flat" } else { "GROWS" },
        if is_closed { "closed" } else { "LEFT OPEN" },
        wrong.len(),
        wrong.join("\n"),
    );
    match is_flat && is_closed && were_asked && wrong.is_empty() {
        true => Ok(told),
        false => Err(told),
    }
}

fn median_kib(samples: &[Sample]) -> u64 {
    let mut kib: Vec<u64> = samples.iter().map(|sample| sample.kib).collect();
    kib.sort_unstable();
    kib.get(kib.len() / 2).copied().unwrap_or_default()
}
