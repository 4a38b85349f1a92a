//! Valid numbers for limits, from one a year to 10^12 a second.

use fastrand::Rng;
use tidegate_core::AlgorithmName;

use crate::subject::{Numbers, Subject};

/// 365 days in microseconds.
pub(super) const YEAR: u64 = 365 * 86_400 * 1_000_000;

/// An empty bucket must be full again within 100 years.
const LONGEST_REFILL: u64 = 100 * YEAR;

const MOST_UNITS: u64 = 1 << 32;

/// Numbers of a valid limit.
pub(super) fn random(rng: &mut Rng, subject: Subject) -> Numbers {
    let per = period(rng);
    let mut numbers = Numbers {
        subject,
        count: count(rng, subject),
        per,
        burst: None,
        queue: None,
        offset: 0,
        count_denied: false,
        block_for: (subject != Subject::InFlight && rng.u32(0..4) == 0).then(|| block_for(rng)),
    };
    match subject {
        Subject::Rated(AlgorithmName::FixedWindow) => {
            numbers.offset = if rng.bool() { 0 } else { rng.u64(0..per) };
            numbers.count_denied = rng.u32(0..4) == 0;
        }
        Subject::Rated(AlgorithmName::SlidingLog | AlgorithmName::SlidingWindow) => {}
        Subject::Rated(
            AlgorithmName::TokenBucket | AlgorithmName::Gcra | AlgorithmName::LeakyBucket,
        ) => sizes(rng, &mut numbers),
        Subject::InFlight => {}
    }
    numbers
}

/// Other numbers for the same key: windows keep their length and alignment.
pub(super) fn changed(rng: &mut Rng, numbers: &Numbers) -> Numbers {
    let fresh = random(rng, numbers.subject);
    // A limit with a block belongs to another family than one without.
    let block_for = numbers.block_for.map(|_| fresh.block_for.unwrap_or_else(|| block_for(rng)));
    let fresh = Numbers { block_for, ..fresh };
    let scaled = rng.bool();
    match numbers.subject {
        Subject::Rated(
            AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow | AlgorithmName::SlidingLog,
        ) => {
            let count = if scaled { near(rng, numbers.count, fresh.count) } else { fresh.count };
            Numbers { per: numbers.per, offset: numbers.offset, count, ..fresh }
        }
        Subject::InFlight => {
            let count = near(rng, numbers.count, fresh.count).max(1);
            let per = if scaled { near(rng, numbers.per, fresh.per).max(1) } else { numbers.per };
            Numbers { count, per, ..fresh }
        }
        Subject::Rated(_) if scaled => {
            // The same period and a similar count, as in a typical change.
            let count = near(rng, numbers.count, fresh.count).max(1);
            let mut close = Numbers { count, ..*numbers };
            sizes(rng, &mut close);
            close
        }
        Subject::Rated(_) => fresh,
    }
}

/// From a microsecond to thirty days.
fn block_for(rng: &mut Rng) -> u64 {
    spread(rng, 42).clamp(1, 30 * 86_400_000_000)
}

/// The approximate time of one unit, in microseconds.
pub(super) fn grain(numbers: &Numbers) -> u64 {
    numbers.per.div_ceil(numbers.count.max(1))
}

/// The approximate time of all units: a refill, a window, a lease.
pub(super) fn horizon(numbers: &Numbers) -> u64 {
    let refill = u128::from(numbers.capacity()) * u128::from(numbers.per);
    let refill = refill / u128::from(numbers.count.max(1));
    u64::try_from(refill).unwrap_or(u64::MAX).clamp(1, LONGEST_REFILL)
}

/// A number of at most `bits` bits, every size as likely as any other.
pub(super) fn spread(rng: &mut Rng, bits: u32) -> u64 {
    let bits = rng.u32(0..=bits);
    rng.u64(0..=(1 << bits) - 1)
}

/// A legal number close to `old`, or `other`.
fn near(rng: &mut Rng, old: u64, other: u64) -> u64 {
    match rng.u32(0..6) {
        0 => old / 2,
        1 => old.saturating_sub(1),
        2 => old / 3 * 2,
        3 if old < other => old + 1,
        4 if old < other / 2 => old * 2,
        _ => other,
    }
}

fn period(rng: &mut Rng) -> u64 {
    const USUAL: [u64; 12] = [
        1,
        7,
        1_000,
        250_000,
        1_000_000,
        10_000_000,
        60_000_000,
        3_600_000_000,
        86_400_000_000,
        30 * 86_400_000_000,
        YEAR,
        10 * YEAR,
    ];
    match rng.u32(0..3) {
        0 => spread(rng, 44).clamp(1, YEAR),
        1 => spread(rng, 12).max(1),
        _ => USUAL[rng.usize(0..USUAL.len())],
    }
}

fn count(rng: &mut Rng, subject: Subject) -> u64 {
    const USUAL: [u64; 14] =
        [1, 2, 3, 5, 7, 10, 30, 60, 97, 100, 1_000, 5_000, 1_000_000, 1_000_000_000_000];
    let (smallest, largest, bits) = match subject {
        Subject::Rated(AlgorithmName::FixedWindow) => (0, 1 << 52, 53),
        Subject::Rated(AlgorithmName::SlidingWindow) => (0, 1 << 32, 33),
        Subject::Rated(AlgorithmName::SlidingLog) => (0, 1_000_000, 14),
        Subject::Rated(_) => (1, 1 << 52, 53),
        Subject::InFlight => (1, 100_000, 17),
    };
    let count = match rng.u32(0..8) {
        0 => spread(rng, bits),
        1 => largest - rng.u64(0..=1),
        2..5 => rng.u64(0..=12),
        _ => USUAL[rng.usize(0..USUAL.len())],
    };
    count.clamp(smallest, largest)
}

/// Chooses the size of a bucket, within the bounds of its rate.
fn sizes(rng: &mut Rng, numbers: &mut Numbers) {
    let most = u128::from(LONGEST_REFILL) * u128::from(numbers.count) / u128::from(numbers.per);
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let default_fits = numbers.count <= MOST_UNITS;
    numbers.burst = None;
    numbers.queue = None;
    match numbers.subject {
        Subject::Rated(AlgorithmName::LeakyBucket) => {
            let burst = size(rng, (most - 1).min(MOST_UNITS)).max(1);
            let room = (most - burst).min(MOST_UNITS);
            let defaults = default_fits && numbers.count < most && rng.u32(0..4) == 0;
            numbers.burst = (!defaults).then_some(burst);
            numbers.queue = (!defaults).then(|| size(rng, room));
        }
        Subject::Rated(AlgorithmName::Gcra) if rng.bool() => {}
        Subject::Rated(AlgorithmName::TokenBucket) if default_fits && rng.u32(0..4) == 0 => {}
        _ => numbers.burst = Some(size(rng, most.min(MOST_UNITS)).max(1)),
    }
}

/// Mostly small, so that traces reach the limit.
fn size(rng: &mut Rng, most: u64) -> u64 {
    let size = match rng.u32(0..16) {
        0 => most,
        1..5 => spread(rng, 20),
        5..8 => rng.u64(0..=100),
        _ => rng.u64(0..=8),
    };
    size.min(most)
}
