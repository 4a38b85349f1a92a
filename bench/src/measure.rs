//! The instruments: processor time of a thread, resident memory, pauses, and the timed loop.

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::candidate::{Decider, Path};
use crate::traffic::{Names, Request};

/// How decisions follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loop {
    /// Back to back: the processor overlaps consecutive decisions, as in a busy server.
    Tight,
    /// One at a time, with `lfence` after each call.
    Isolated,
}

/// The work of one or two threads in a time slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub decisions: u64,
    pub allowed: u64,
    /// Summed over the threads.
    pub cpu: Duration,
    /// Decisions per second of wall time, summed over the threads.
    pub per_second: f64,
}

impl Sample {
    pub fn ns_per_decision(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.decisions as f64
    }

    pub fn allowed_share(&self) -> f64 {
        self.allowed as f64 / self.decisions as f64
    }
}

/// Runs one thread per tape for `slice`, after a short run that is not counted.
pub fn sample(
    decider: &dyn Decider,
    tapes: &[Vec<Request>],
    shape: Loop,
    slice: Duration,
) -> Sample {
    decider.share(tapes.len());
    let start = Barrier::new(tapes.len());
    let run = |requests: &[Request]| {
        let mut tape = Tape { requests, at: 0 };
        drive(decider, &mut tape, shape, slice / 4);
        start.wait();
        drive(decider, &mut tape, shape, slice)
    };
    let total = std::thread::scope(|scope| {
        let threads: Vec<_> = tapes.iter().map(|tape| scope.spawn(|| run(tape))).collect();
        let parts = threads.into_iter().map(|thread| thread.join().expect("deciding cannot fail"));
        parts.fold(Sample::default(), |total, part| Sample {
            decisions: total.decisions + part.decisions,
            allowed: total.allowed + part.allowed,
            cpu: total.cpu + part.cpu,
            per_second: total.per_second + part.per_second,
        })
    });
    decider.share(1);
    total
}

/// Requests played in a loop.
struct Tape<'a> {
    requests: &'a [Request],
    at: usize,
}

impl<'a> Tape<'a> {
    /// Decisions between two clock readings: few enough to stop in time, many enough to hide the
    /// cost of a reading.
    const SLICE: usize = 512;

    fn next(&mut self) -> &'a [Request] {
        if self.at + Self::SLICE > self.requests.len() {
            self.at = 0;
        }
        self.at += Self::SLICE;
        &self.requests[self.at - Self::SLICE..self.at]
    }
}

fn drive(decider: &dyn Decider, tape: &mut Tape<'_>, shape: Loop, slice: Duration) -> Sample {
    let mut sample = Sample::default();
    let (cpu, start) = (thread_cpu(), Instant::now());
    loop {
        let requests = tape.next();
        sample.allowed += match shape {
            Loop::Tight => decider.tight(requests),
            Loop::Isolated => decider.isolated(requests),
        };
        sample.decisions += requests.len() as u64;
        let wall = start.elapsed();
        if wall >= slice {
            sample.cpu = thread_cpu() - cpu;
            sample.per_second = sample.decisions as f64 / wall.as_secs_f64();
            return sample;
        }
    }
}

/// The cost of inserting keys one by one.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Inserts {
    pub count: u64,
    /// Thread time of all inserts, including formatting the keys and reading the clocks (about 40
    /// ns each).
    pub cpu: Duration,
    pub worst_wall: Duration,
    /// The longest thread time of [`Inserts::BLOCK`] inserts in a row: an upper bound of one insert
    /// without preemption.
    pub worst_cpu: Duration,
}

impl Inserts {
    /// The thread clock is a system call, so it is read once per block.
    const BLOCK: usize = 16;

    pub fn mean_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.count as f64
    }

    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            cpu: self.cpu + other.cpu,
            worst_wall: self.worst_wall.max(other.worst_wall),
            worst_cpu: self.worst_cpu.max(other.worst_cpu),
        }
    }
}

/// Inserts the keys of `range`, and charges each until its requests pass or are denied as `path`
/// requires.
pub fn fill(decider: &dyn Decider, names: Names, path: Path, range: Range<u32>) -> Inserts {
    let clock = quanta::Clock::new();
    let mut request = names.request();
    let mut inserts = Inserts { count: u64::from(range.end - range.start), ..Inserts::default() };
    let (mut worst, mut cpu) = (0, thread_cpu());
    for block in range.clone().step_by(Inserts::BLOCK) {
        for index in block..range.end.min(block + Inserts::BLOCK as u32) {
            names.write(&mut request, index);
            let start = clock.raw();
            let allowed = decider.decide(&request);
            worst = worst.max(clock.delta_as_nanos(start, clock.raw()));
            if allowed && path == Path::Deny {
                exhaust(decider, &request);
            }
        }
        let now = thread_cpu();
        inserts.worst_cpu = inserts.worst_cpu.max(now - cpu);
        inserts.cpu += now - cpu;
        cpu = now;
    }
    inserts.worst_wall = Duration::from_nanos(worst);
    inserts
}

/// Some limiters cannot hold a burst of one.
fn exhaust(decider: &dyn Decider, request: &Request) {
    for _ in 0..4 {
        if !decider.decide(request) {
            return;
        }
    }
}

/// CPU time of this thread. Unlike wall time it does not grow while another process has the processor.
pub fn thread_cpu() -> Duration {
    cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this process.
pub fn process_cpu() -> Duration {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place to write to, and the clock exists on every Linux.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(failed, 0, "processor time cannot be read");
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Resident memory of this process in bytes, without the pages of files, which do not depend on the
/// table.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    /// The peak since the start, or since [`Memory::reset_peak`].
    pub peak: u64,
}

impl Memory {
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kib.expect("the kernel reports memory in kB") * 1024
        };
        let files = field("RssFile:");
        let resident = field("VmRSS:").saturating_sub(files);
        Self { resident, peak: field("VmHWM:").saturating_sub(files).max(resident) }
    }

    /// If the kernel does not allow it, peaks are those of the whole process, and too high.
    pub fn reset_peak() {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }

    /// Touches this much memory and frees it, because the first touch of a page on a fresh virtual
    /// machine costs the host milliseconds.
    pub fn warm(bytes: u64) {
        let bytes = usize::try_from(bytes).expect("memory fits the address space");
        drop(std::hint::black_box(vec![1_u8; bytes]));
        Self::reset_peak();
    }
}
