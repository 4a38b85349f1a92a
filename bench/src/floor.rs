//! Floors: the cost of the least work that a decision needs on this machine.
//!
//! `slot_gcra*` is the realistic one: hash, one cache line of four (fingerprint, arrival time)
//! slots, the time stamp counter, one compare-and-swap. It has a fixed size, never grows or evicts,
//! has one limit, and answers only yes or no. A real limiter cannot do that.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::candidate::{BATCH, Candidate, Decider, Setup};
use crate::machine;
use crate::traffic::Request;

pub const CANDIDATES: &[Candidate] = &[
    Candidate::new("rmw_indep", |setup| Box::new(Independent(words(setup)))),
    Candidate::new("rmw_dep", |setup| Box::new(Dependent(words(setup)))),
    Candidate::new("rmw_atomic", |setup| Box::new(Atomic(words(setup)))),
    Candidate::new("hash_only", |_| Box::new(HashOnly(hasher()))),
    Candidate::new("slot_gcra", |setup| Box::new(Slots::new(setup, Pages::Small))),
    Candidate::new("slot_gcra_thp", |setup| Box::new(Slots::new(setup, Pages::Huge))),
    Candidate::new("slot_gcra_thp_deny", |setup| Box::new(Slots::new(setup, Pages::Huge)))
        .denying(),
    Candidate::new("slot_gcra_thp_b16", |setup| Box::new(Batched(Slots::new(setup, Pages::Huge)))),
];

/// Reads and writes one word per request; the processor may overlap as many as it can.
struct Independent(Vec<AtomicU64>);

impl Decider for Independent {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        let word = &self.0[request.index as usize];
        word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
        true
    }
}

/// Like [`Independent`], but each word determines the place of the next, so the processor cannot
/// overlap the accesses.
struct Dependent(Vec<AtomicU64>);

impl Decider for Dependent {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.chained(request, 0);
        true
    }

    fn tight(&self, requests: &[Request]) -> u64 {
        let carry = requests.iter().fold(0, |carry, request| self.chained(request, carry));
        requests.len() as u64 + carry as u64
    }
}

impl Dependent {
    /// The carry is always 0, which the processor cannot know.
    #[inline(always)]
    fn chained(&self, request: &Request, carry: usize) -> usize {
        let word = &self.0[request.index as usize + carry];
        let value = word.load(Relaxed);
        word.store(value.wrapping_add(1), Relaxed);
        (value >> 63) as usize
    }
}

/// One locked addition per request.
struct Atomic(Vec<AtomicU64>);

impl Decider for Atomic {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.0[request.index as usize].fetch_add(1, Relaxed);
        true
    }
}

/// Hashes the key and stops there.
struct HashOnly(ahash::RandomState);

impl Decider for HashOnly {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        std::hint::black_box(self.0.hash_one(request.key.as_bytes()));
        true
    }
}

struct Slots {
    lines: &'static [Line],
    hasher: ahash::RandomState,
    interval: u64,
    tolerance: u64,
}

#[repr(align(64))]
struct Line([Slot; 4]);

struct Slot {
    fingerprint: AtomicU64,
    arrival: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Small,
    Huge,
}

impl Slots {
    fn new(setup: Setup, pages: Pages) -> Self {
        // Nominal: a tick need not be a third of a nanosecond.
        const TICKS_PER_NANO: u64 = 3;
        let nanos = u64::try_from(setup.terms.interval.as_nanos()).expect("an interval is short");
        let interval = nanos * TICKS_PER_NANO;
        Self {
            lines: map_lines((setup.keys as usize).div_ceil(3) + 2, pages),
            hasher: hasher(),
            interval,
            tolerance: interval * u64::from(setup.terms.burst - 1),
        }
    }

    #[inline(always)]
    fn locate(&self, request: &Request) -> (u64, usize) {
        let hash = self.hasher.hash_one(request.key.as_bytes());
        (hash | 1, ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize)
    }

    #[inline(always)]
    fn charge(&self, fingerprint: u64, home: usize, now: u64) -> bool {
        let mut line = home;
        loop {
            for slot in &self.lines[line].0 {
                let mut held = slot.fingerprint.load(Relaxed);
                if held == 0 {
                    let claim = slot.fingerprint.compare_exchange(0, fingerprint, Relaxed, Relaxed);
                    held = claim.map_or_else(|other| other, |_| fingerprint);
                }
                if held == fingerprint {
                    return self.take(slot, now);
                }
            }
            line = if line + 1 == self.lines.len() { 0 } else { line + 1 };
        }
    }

    #[inline(always)]
    fn take(&self, slot: &Slot, now: u64) -> bool {
        let mut arrival = slot.arrival.load(Relaxed);
        loop {
            let start = arrival.max(now);
            if start - now > self.tolerance {
                return false;
            }
            let next = start + self.interval;
            match slot.arrival.compare_exchange_weak(arrival, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(other) => arrival = other,
            }
        }
    }
}

impl Decider for Slots {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        let (fingerprint, home) = self.locate(request);
        self.charge(fingerprint, home, machine::ticks())
    }
}

/// Prefetches sixteen lines before it reads the first.
struct Batched(Slots);

impl Decider for Batched {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.0.decide(request)
    }

    fn tight(&self, requests: &[Request]) -> u64 {
        requests.chunks(BATCH).map(|batch| self.batch(batch)).sum()
    }

    fn isolated(&self, requests: &[Request]) -> u64 {
        let each = requests.chunks(BATCH).map(|batch| {
            let allowed = self.batch(batch);
            machine::isolate();
            allowed
        });
        each.sum()
    }
}

impl Batched {
    #[inline(always)]
    fn batch(&self, batch: &[Request]) -> u64 {
        let now = machine::ticks();
        let mut places = [(0, 0); BATCH];
        for (place, request) in places.iter_mut().zip(batch) {
            *place = self.0.locate(request);
            machine::prefetch(&self.0.lines[place.1]);
        }
        let places = &places[..batch.len()];
        places.iter().map(|&(print, home)| u64::from(self.0.charge(print, home, now))).sum()
    }
}

fn words(setup: Setup) -> Vec<AtomicU64> {
    (0..setup.keys).map(|_| AtomicU64::new(0)).collect()
}

fn hasher() -> ahash::RandomState {
    ahash::RandomState::with_seeds(1, 2, 3, 4)
}

/// Fresh zeroed lines from the kernel, never given back: the process ends with the measurement.
fn map_lines(count: usize, pages: Pages) -> &'static [Line] {
    const HUGE: usize = 2 << 20;
    let bytes = (count * size_of::<Line>()).next_multiple_of(HUGE);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a private anonymous mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes + HUGE, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "no memory for the floor's table");
    let aligned = start.wrapping_byte_add(start.align_offset(HUGE));
    if pages == Pages::Huge {
        // SAFETY: `aligned..aligned + bytes` lies inside the mapping; the call is only a hint.
        unsafe { libc::madvise(aligned, bytes, libc::MADV_HUGEPAGE) };
    }
    // SAFETY: zeroed memory is a valid `Line`, the mapping is large enough, aligned, and leaked.
    unsafe { std::slice::from_raw_parts(aligned.cast::<Line>(), count) }
}
