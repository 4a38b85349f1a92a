//! The measurements of a run, and their assessment.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

use super::daemon::Daemon;
use super::load::Load;
use super::reload::Reloads;

/// Allowed growth above the median memory: pages that are touched late.
const SLACK_KIB: u64 = 4 << 10;

/// Measurements at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    seconds: u64,
    kib: u64,
    files: usize,
    /// Decisions over RESP, HTTP and gRPC.
    decisions: [u64; 3],
    vanished: u64,
    /// Policies accepted and refused.
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

/// Whether memory stays constant.
pub(crate) struct Flatness {
    /// Median of the second third of all samples, and of the last third.
    before: u64,
    late: u64,
    most: u64,
}

impl Flatness {
    /// Needs at least six samples, in KiB.
    pub(crate) fn of(kib: &[u64]) -> Option<Self> {
        let third = kib.len() / 3;
        if third < 2 {
            return None;
        }
        let (_, rest) = kib.split_at(kib.len() - 2 * third);
        let (before, late) = rest.split_at(third);
        let most = kib.iter().copied().max().unwrap_or_default();
        Some(Self { before: median(before), late: median(late), most })
    }

    /// Memory is flat if the median of the last third is not above that of the second. By then
    /// every key of the window has been used.
    pub(crate) const fn is_flat(&self) -> bool {
        self.late <= self.before + self.before / 50 + SLACK_KIB
    }
}

impl fmt::Display for Flatness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, late, most } = self;
        write!(
            f,
            "memory: median {before} KiB in the second third, {late} KiB in the last, {most} KiB at \
             most: {}",
            if self.is_flat() { "flat" } else { "GROWS" }
        )
    }
}

/// Assesses all samples.
pub(crate) fn judge(
    samples: &[Sample],
    (idle_files, last_files): (usize, usize),
    wrong: &[String],
) -> Result<String, String> {
    let kib: Vec<u64> = samples.iter().map(|sample| sample.kib).collect();
    let (Some(last), Some(flatness)) = (samples.last(), Flatness::of(&kib)) else {
        return Err(format!("too short to say anything: {}", wrong.join("; ")));
    };
    let is_closed = last_files <= idle_files;
    let were_asked = last.decisions.iter().all(|count| *count > 0) && last.reloads[0] > 0;
    let answer = format!(
        "{}\n{last}\n{flatness}\nfiles: {idle_files} before, {last_files} after all clients went: \
         {}\nerrors: {}\n{}",
        heading(),
        if is_closed { "closed" } else { "LEFT OPEN" },
        wrong.len(),
        wrong.join("\n"),
    );
    match flatness.is_flat() && is_closed && were_asked && wrong.is_empty() {
        true => Ok(answer),
        false => Err(answer),
    }
}

fn median(kib: &[u64]) -> u64 {
    let mut kib = kib.to_vec();
    kib.sort_unstable();
    kib.get(kib.len() / 2).copied().unwrap_or_default()
}
