//! The memory store carries the pure functions: decision by decision, field by field.
//!
//! Random operations on random keys, with numbers that change while they run, go to a store and to
//! a map of states. A mismatch names its seed.

use tidegate::store::memory::MemoryStore;
use tidegate::store::{Charge, MAX_TOGETHER};
use tidegate::{Algorithm, Decision, Hashing, Limit, Rate, Span, Timestamp};

use crate::reference::{Asked, Reference};
use crate::traffic::{Subject, Traffic};

const SEED: u64 = 20_260_301;
/// Decisions that every test compares at least.
const DECISIONS: u64 = 200_000;
const TRACES: u64 = 16;

/// A store, what it must answer, and where we are.
struct Comparison {
    store: MemoryStore,
    reference: Reference,
    traffic: Traffic,
    seed: u64,
    decisions: u64,
}

impl Comparison {
    fn new(seed: u64, subjects: &[Subject], keys: u64, backwards: bool) -> Self {
        Self {
            store: MemoryStore::new(64 << 20, Hashing::Fast).unwrap(),
            reference: Reference::default(),
            traffic: Traffic::new(seed, subjects, keys, backwards),
            seed,
            decisions: 0,
        }
    }

    /// One call: one charge, several each alone, or several together.
    fn step(&mut self) {
        self.traffic.step();
        match self.traffic.rng.u8(0..10) {
            0..6 => self.one(),
            6..8 => self.each(),
            _ => self.together(),
        }
    }

    fn ask(&mut self, count: usize) -> (Timestamp, Vec<Asked>, Vec<[u8; 8]>) {
        let asked: Vec<Asked> = (0..count).map(|_| self.traffic.ask()).collect();
        let texts = asked.iter().map(|asked| asked.id.1.to_le_bytes()).collect();
        (self.traffic.now, asked, texts)
    }

    fn charges<'a>(&self, asked: &'a [Asked], texts: &'a [[u8; 8]]) -> Vec<Charge<'a>> {
        let charge = |(asked, text): (&'a Asked, &'a [u8; 8])| {
            self.traffic.subjects[asked.id.0].charge(text, asked)
        };
        asked.iter().zip(texts).map(charge).collect()
    }

    fn one(&mut self) {
        let (now, asked, texts) = self.ask(1);
        let charges = self.charges(&asked, &texts);
        let answer = self.store.decide(now, &charges[0]);
        let compared = self.reference.decide(now, &asked[0], &answer);
        self.judge(compared, &asked, &[answer]);
        if let Some(state) = self.reference.state(&asked[0]) {
            let mut meant = asked[0].limit.explain(&state, now);
            let mut explained = self.store.explain(now, charges[0].key, charges[0].limit);
            // Whatever is idle already is as good as never seen.
            meant.idle_at = meant.idle_at.max(now);
            explained.idle_at = explained.idle_at.max(now);
            assert_eq!(explained, meant, "seed {}, after {asked:?}", self.seed);
        }
    }

    fn each(&mut self) {
        let count = self.traffic.rng.usize(1..=20);
        let (now, asked, texts) = self.ask(count);
        let mut answers = Vec::new();
        let charges = self.charges(&asked, &texts);
        self.store.decide_each(now, &charges, |decision| answers.push(decision));
        assert_eq!(answers.len(), asked.len());
        for (asked, answer) in asked.iter().zip(&answers) {
            let compared = self.reference.decide(now, asked, answer);
            self.judge(compared, std::slice::from_ref(asked), std::slice::from_ref(answer));
        }
    }

    fn together(&mut self) {
        let most = if self.traffic.rng.u8(0..10) == 0 { MAX_TOGETHER } else { 5 };
        let count = self.traffic.rng.usize(1..=most);
        let (now, mut asked, mut texts) = self.ask(count);
        if self.traffic.rng.bool() {
            // Several limits on the same key, as a request has them.
            for asked in &mut asked[1..] {
                asked.id.1 = u64::from_le_bytes(texts[0]);
            }
            texts = vec![texts[0]; count];
        }
        let mut answers = Vec::new();
        let charges = self.charges(&asked, &texts);
        let allowed = self.store.decide_together(now, &charges, |answer| answers.push(answer));
        let compared = self.reference.decide_together(now, &asked, (allowed, &answers));
        self.judge(compared, &asked, &answers);
    }

    fn judge(
        &mut self,
        compared: Result<(), Vec<Decision>>,
        asked: &[Asked],
        answers: &[Decision],
    ) {
        self.decisions += answers.len() as u64;
        answers.iter().for_each(|answer| self.traffic.hear(answer));
        let Err(expected) = compared else { return };
        let mut lines = String::new();
        for (i, asked) in asked.iter().enumerate() {
            let (answer, expected) = (answers.get(i), expected.get(i));
            let mark = if answer == expected { "" } else { "  <-- differs" };
            lines +=
                &format!("{asked:?}{mark}\n    answer   {answer:?}\n    expected {expected:?}\n");
        }
        panic!(
            "seed {}, decision {}, at {}\n{lines}replay: run this test again, its seeds are constant \
             and only the secret of the store differs",
            self.seed, self.decisions, self.traffic.now,
        );
    }
}

/// Compares [`DECISIONS`] decisions: half of the traces with a clock that also steps back.
fn compare(subjects: &[Subject]) {
    let mut decisions = 0;
    for trace in 0..TRACES {
        let keys = [8, 50, 400, 3_000][trace as usize / 2 % 4];
        let mut comparison = Comparison::new(SEED + trace, subjects, keys, trace % 2 == 1);
        while comparison.decisions < DECISIONS.div_ceil(TRACES) {
            comparison.step();
        }
        decisions += comparison.decisions;
        let stats = comparison.store.stats();
        assert_eq!((stats.evicted, stats.overflowed), (0, 0), "seed {}", SEED + trace);
    }
    assert!(decisions >= DECISIONS, "{decisions} decisions");
}

fn bucket(rate: Rate, burst: u64) -> Limit {
    Limit::token_bucket(rate).burst(burst).build().unwrap()
}

fn leaky(rate: Rate, burst: u64, queue: u64) -> Limit {
    Limit::leaky_bucket(rate).burst(burst).queue(queue).build().unwrap()
}

fn narrow_buckets() -> Vec<Subject> {
    let few = [bucket(Rate::per_second(3), 5), bucket(Rate::per_minute(100), 50)];
    let many = [
        bucket(Rate::per_second(1), 1),
        bucket(Rate::per_second(7), 10),
        bucket(Rate::new(1_024, Span::from_micros(999_999)), 20),
        bucket(Rate::new(1_023, Span::from_micros(10)), 1_000),
        bucket(Rate::new(1, Span::from_secs(365 * 86_400)), 3),
    ];
    vec![Subject::new("few", &few), Subject::new("many", &many)]
}

fn wide_buckets() -> Vec<Subject> {
    let numbers = [
        bucket(Rate::new(1_025, Span::from_micros(999_999)), 5),
        bucket(Rate::new(999_983, Span::from_secs(60)), 100_000),
        bucket(Rate::new(1_000_000_007, Span::from_micros(1_000)), 1_000_000),
        bucket(Rate::new(7_919, Span::from_micros(1_000_003)), 7),
    ];
    vec![Subject::new("wide", &numbers)]
}

fn crossing_buckets() -> Vec<Subject> {
    let numbers = [
        bucket(Rate::per_second(3), 5),
        bucket(Rate::new(1_024, Span::from_micros(999_999)), 6),
        bucket(Rate::new(1_025, Span::from_micros(999_999)), 6),
        bucket(Rate::new(7_919, Span::from_micros(1_000_003)), 7),
        bucket(Rate::new(99_991, Span::from_secs(100_000)), 4),
    ];
    vec![Subject::new("crossing", &numbers), Subject::new("other", &numbers[1..3])]
}

fn leaky_buckets() -> Vec<Subject> {
    let numbers = [
        leaky(Rate::per_second(10), 1, 10),
        leaky(Rate::per_second(7), 3, 4),
        leaky(Rate::new(1_025, Span::from_micros(999_999)), 2, 8),
        bucket(Rate::per_second(7), 7),
    ];
    vec![Subject::new("leaky", &numbers)]
}

fn fixed_windows() -> Vec<Subject> {
    let window = |count, secs| Limit::fixed_window(Rate::new(count, Span::from_secs(secs)));
    let plain = [window(10, 1), window(3, 1), window(0, 1), window(1 << 52, 1)];
    let counting = [window(10, 2).count_denied(), window(4, 2), window(0, 2).count_denied()];
    let shifted = Span::from_millis(333);
    let offset = [window(5, 1).offset(shifted), window(8, 1).offset(shifted).count_denied()];
    let short = Limit::fixed_window(Rate::new(2, Span::from_micros(10))).build().unwrap();
    vec![
        Subject::new("plain", &plain.map(|limit| limit.build().unwrap())),
        Subject::new("counting", &counting.map(|limit| limit.build().unwrap())),
        Subject::new("offset", &offset.map(|limit| limit.build().unwrap())),
        Subject::new("short", &[short]),
    ]
}

fn sliding_windows() -> Vec<Subject> {
    let window = |count, micros| {
        Limit::sliding_window(Rate::new(count, Span::from_micros(micros))).build().unwrap()
    };
    let second = [10, 3, 0, 1 << 32, (1 << 32) - 1].map(|count| window(count, 1_000_000));
    let large = [1 << 32, 1 << 31].map(|count| window(count, 3_000_001));
    let short = [window(5, 7), window(6, 7)];
    vec![
        Subject::new("second", &second),
        Subject::new("large", &large),
        Subject::new("short", &short),
    ]
}

fn sliding_logs() -> Vec<Subject> {
    let log = |count, micros| {
        Limit::sliding_log(Rate::new(count, Span::from_micros(micros))).build().unwrap()
    };
    let numbers = [log(5, 1_000_000), log(12, 300_000), log(3, 2_000_000), log(0, 1_000)];
    vec![Subject::new("log", &numbers)]
}

fn in_flight() -> Vec<Subject> {
    let places = |count, micros| Limit::in_flight(count, Span::from_micros(micros)).unwrap();
    let numbers = [places(4, 1_000_000), places(10, 500_000), places(2, 5_000_000)];
    vec![Subject::new("places", &numbers), Subject::new("forever", &[places(3, 1 << 50)])]
}

#[test]
fn narrow_buckets_agree_with_the_pure_function() {
    compare(&narrow_buckets());
}

#[test]
fn wide_buckets_agree_with_the_pure_function() {
    compare(&wide_buckets());
}

/// A denominator that crosses 1,024 moves the state to another table; no debt is lost.
#[test]
fn buckets_that_change_tables_agree_with_the_pure_function() {
    compare(&crossing_buckets());
}

#[test]
fn leaky_buckets_agree_with_the_pure_function() {
    compare(&leaky_buckets());
}

#[test]
fn fixed_windows_agree_with_the_pure_function() {
    compare(&fixed_windows());
}

#[test]
fn sliding_windows_agree_with_the_pure_function() {
    compare(&sliding_windows());
}

#[test]
fn sliding_logs_agree_with_the_pure_function() {
    compare(&sliding_logs());
}

#[test]
fn in_flight_limits_agree_with_the_pure_function() {
    compare(&in_flight());
}

#[test]
fn all_families_in_one_batch_agree_with_the_pure_functions() {
    let families = [
        narrow_buckets(),
        wide_buckets(),
        leaky_buckets(),
        fixed_windows(),
        sliding_windows(),
        sliding_logs(),
        in_flight(),
    ];
    compare(&families.concat());
}
