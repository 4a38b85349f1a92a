//! `attack`: a flood of distinct keys against a bounded table. The memory must stay within its
//! bound, keys that are denied must stay denied, and a flood must not cost more than traffic.

use std::time::Duration;

use ::tidegate::Limiter;
use serde::Serialize;

use crate::candidate::LimitNumbers;
use crate::measure::{Memory, thread_cpu};
use crate::options::Options;
use crate::report::{self, Table};
use crate::traffic::Random;
use crate::{Failure, tidegate};

const VICTIMS: u64 = 1_000;
/// The first half of the victims sends requests during the whole flood, as clients that keep
/// retrying do; the others only at the end.
const WATCHED: u64 = VICTIMS / 2;
const SAMPLES: u32 = 200;
/// One unit stays on an account far longer than the flood lasts.
const TERMS: LimitNumbers = LimitNumbers { interval: Duration::from_secs(600), burst: 10 };

/// The effect of the flood.
#[derive(Debug, Serialize)]
struct Outcome {
    keys: u32,
    max_bytes: u64,
    /// The largest increase of resident memory over the process without the table.
    resident_bytes: u64,
    /// The memory that the table reports.
    reported_bytes: u64,
    within_bound: bool,
    victims: u64,
    /// Victims that were never admitted, neither during the flood nor after it.
    still_denied: usize,
    still_denied_watched: usize,
    /// Number of keys of the flood before the first victim was admitted; `None` if none was.
    first_freed_after: Option<u32>,
    flood_allowed: f64,
    evicted: u64,
    evicted_units: u64,
    overflowed: u64,
    /// Thread time per decision, without the time to format the key.
    flood_ns: f64,
    /// The same flood into a table with room for all keys.
    roomy_ns: f64,
    /// Checks of existing keys in that table.
    normal_ns: f64,
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let most = if options.quick { 1_000_000 } else { 20_000_000 };
    let keys = options.keys.as_ref().map_or(most, |keys| keys[0]);
    let mib = options.max_mib.unwrap_or(if options.quick { 16 } else { 256 });
    let max_bytes = mib << 20;
    Memory::warm(u64::from(keys) * 48 + max_bytes);

    let making = making_ns(keys);
    let flood = Flood::run(keys, max_bytes);
    let (roomy_ns, normal_ns) = roomy(keys);
    let outcome = flood.outcome(making, roomy_ns - making, normal_ns - making);
    print(&outcome);
    report::write(&options.out("attack.json"), &outcome)?;
    if !outcome.within_bound {
        let resident = outcome.resident_bytes;
        return Err(format!("{resident} bytes resident, {max_bytes} allowed").into());
    }
    if outcome.evicted_units > outcome.evicted {
        return Err("more than one unit was forgotten for an evicted key".into());
    }
    match outcome.still_denied {
        all if all as u64 == VICTIMS => Ok(()),
        denied => Err(format!("{denied} of {VICTIMS} keys in denial stayed denied").into()),
    }
}

struct Flood {
    keys: u32,
    max_bytes: u64,
    limiter: Limiter,
    before: u64,
    most: u64,
    allowed: u64,
    cpu: Duration,
    freed: Vec<bool>,
    first_freed_after: Option<u32>,
}

impl Flood {
    fn run(keys: u32, max_bytes: u64) -> Self {
        let before = Memory::now().resident;
        let mut flood = Self {
            keys,
            max_bytes,
            limiter: tidegate::bounded(tidegate::bucket(TERMS), max_bytes),
            before,
            most: 0,
            allowed: 0,
            cpu: Duration::ZERO,
            freed: vec![false; VICTIMS as usize],
            first_freed_after: None,
        };
        for victim in 0..VICTIMS {
            let key = victim_key(victim);
            while flood.limiter.check(&key).is_allowed() {}
        }
        let step = keys.div_ceil(SAMPLES).max(1);
        for start in (0..keys).step_by(step as usize) {
            let end = keys.min(start + step);
            let cpu = thread_cpu();
            flood.allowed += insert(&flood.limiter, start..end);
            flood.cpu += thread_cpu() - cpu;
            flood.most = flood.most.max(Memory::now().resident);
            flood.ask(0..WATCHED, end);
        }
        flood.ask(0..VICTIMS, keys);
        flood
    }

    fn ask(&mut self, victims: std::ops::Range<u64>, after: u32) {
        for victim in victims {
            if self.limiter.check(victim_key(victim)).is_allowed() {
                self.freed[victim as usize] = true;
                self.first_freed_after.get_or_insert(after);
            }
        }
    }

    fn outcome(self, making: f64, roomy_ns: f64, normal_ns: f64) -> Outcome {
        let stats = self.limiter.stats();
        let resident_bytes = self.most.saturating_sub(self.before);
        let denied = |freed: &[bool]| freed.iter().filter(|&&freed| !freed).count();
        Outcome {
            keys: self.keys,
            max_bytes: self.max_bytes,
            resident_bytes,
            reported_bytes: stats.bytes,
            within_bound: resident_bytes <= self.max_bytes,
            victims: VICTIMS,
            still_denied: denied(&self.freed),
            still_denied_watched: denied(&self.freed[..WATCHED as usize]),
            first_freed_after: self.first_freed_after,
            flood_allowed: self.allowed as f64 / f64::from(self.keys),
            evicted: stats.evicted,
            evicted_units: stats.evicted_units,
            overflowed: stats.overflowed,
            flood_ns: self.cpu.as_nanos() as f64 / f64::from(self.keys) - making,
            roomy_ns,
            normal_ns,
        }
    }
}

/// Charges each key of the flood once; returns the number of admissions.
fn insert(limiter: &Limiter, keys: std::ops::Range<u32>) -> u64 {
    let mut key = FloodKey::default();
    keys.map(|number| u64::from(limiter.check(key.write(number)).is_allowed())).sum()
}

/// Thread time per insert and per later check in a table with room for all keys.
fn roomy(keys: u32) -> (f64, f64) {
    let room = (u64::from(keys) * 48).max(64 << 20);
    let limiter = tidegate::bounded(tidegate::bucket(TERMS), room);
    let per_key = |count: u32| {
        let cpu = thread_cpu();
        std::hint::black_box(insert(&limiter, 0..count));
        (thread_cpu() - cpu).as_nanos() as f64 / f64::from(count)
    };
    (per_key(keys), per_key(keys.min(5_000_000)))
}

/// The time to format a key, to be subtracted.
fn making_ns(keys: u32) -> f64 {
    let mut key = FloodKey::default();
    let cpu = thread_cpu();
    for number in 0..keys.min(5_000_000) {
        std::hint::black_box(key.write(number));
    }
    (thread_cpu() - cpu).as_nanos() as f64 / f64::from(keys.min(5_000_000))
}

/// `atk:` and 16 digits that look random and never repeat.
struct FloodKey(String);

impl Default for FloodKey {
    fn default() -> Self {
        Self(String::with_capacity(20))
    }
}

impl FloodKey {
    fn write(&mut self, number: u32) -> &str {
        let digits = Random::mix(u64::from(number) + 1);
        self.0.clear();
        self.0.push_str("atk:");
        for place in (0..16).rev() {
            let digit = (digits >> (4 * place) & 15) as u32;
            self.0.push(char::from_digit(digit, 16).expect("four bits are a digit"));
        }
        &self.0
    }
}

fn victim_key(number: u64) -> String {
    format!("victim:{number:04}")
}

fn print(outcome: &Outcome) {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let times = |ns: f64| format!("{ns:.0} ns");
    let bound = if outcome.within_bound { "within" } else { "EXCEEDED" };
    println!("\n### {} distinct keys against a bounded table\n", report::grouped(outcome.keys));
    let mut table = Table::new(&["what", "value"]);
    let mut line = |what: &str, value: String| table.push(vec![what.to_owned(), value]);
    line("bound", mib(outcome.max_bytes));
    line("resident above base line, at most", format!("{} ({bound})", mib(outcome.resident_bytes)));
    line("bytes the table reports", mib(outcome.reported_bytes));
    line("denied keys still denied", format!("{} of {VICTIMS}", outcome.still_denied));
    line("of those asked all along", format!("{} of {WATCHED}", outcome.still_denied_watched));
    let first = outcome.first_freed_after.map_or_else(|| "never".to_owned(), report::grouped);
    line("first one let through after", first);
    line("flood allowed", format!("{:.2} %", outcome.flood_allowed * 100.0));
    line("evicted", outcome.evicted.to_string());
    line("units forgotten", outcome.evicted_units.to_string());
    line("overflowed", outcome.overflowed.to_string());
    line("flood", times(outcome.flood_ns));
    line("the same keys with room for all", times(outcome.roomy_ns));
    line("normal checks of keys that are there", times(outcome.normal_ns));
    line("flood / with room", report::ratio(Some(outcome.flood_ns / outcome.roomy_ns)));
    line("flood / normal", report::ratio(Some(outcome.flood_ns / outcome.normal_ns)));
    table.print();
}
