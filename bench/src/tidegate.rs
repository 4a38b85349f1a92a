//! Tidegate, through its public keyed interface. Every field of an answer is read (allowed,
//! remaining, reset), as the targets require.

use std::hint::black_box;
use std::time::Duration;

use ::tidegate::{Limit, Limiter, Rate, Span, Verdict};

use crate::candidate::{BATCH, Candidate, Decider, LimitNumbers, Setup};
use crate::machine;
use crate::traffic::{Names, Request};

pub const CANDIDATES: &[Candidate] = &[
    Candidate::new("tidegate", |setup| Box::new(Single(limiter(bucket(setup.terms))))),
    Candidate::new("tidegate_b16", |setup| Box::new(Batched(limiter(bucket(setup.terms))))),
    Candidate::new("tidegate_deny", |setup| Box::new(Single(limiter(bucket(setup.terms)))))
        .denying(),
    Candidate::new("tidegate_fixed_window", |_| Box::new(Single(limiter(fixed_window())))),
    Candidate::new("tidegate_sliding_window", |_| Box::new(Single(limiter(sliding_window())))),
    Candidate::new("tidegate_together2", together).pairs(),
    Candidate::new("tidegate_thirds", |setup| Box::new(Single(limiter(thirds(setup.terms))))),
    Candidate::new("tidegate_changed", |setup| {
        Box::new(Changed { limiter: limiter(bucket(setup.terms)), setup })
    }),
];

/// More than any run needs; memory is used as keys come.
const MAX_BYTES: u64 = 1 << 30;

/// One key per call.
struct Single(Limiter);

impl Decider for Single {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        read(&self.0.check(&request.key))
    }
}

/// Sixteen keys per call; collecting them is the caller's work and is timed.
struct Batched(Limiter);

impl Decider for Batched {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        read(&self.0.check(&request.key))
    }

    fn tight(&self, requests: &[Request]) -> u64 {
        let mut verdicts = Vec::with_capacity(BATCH);
        requests.chunks(BATCH).map(|batch| self.batch(batch, &mut verdicts)).sum()
    }

    fn isolated(&self, requests: &[Request]) -> u64 {
        let mut verdicts = Vec::with_capacity(BATCH);
        let each = requests.chunks(BATCH).map(|batch| {
            let allowed = self.batch(batch, &mut verdicts);
            machine::isolate();
            allowed
        });
        each.sum()
    }
}

impl Batched {
    #[inline(always)]
    fn batch(&self, batch: &[Request], verdicts: &mut Vec<Verdict>) -> u64 {
        let mut keys = [""; BATCH];
        for (key, request) in keys.iter_mut().zip(batch) {
            *key = &request.key;
        }
        verdicts.clear();
        self.0.check_each(&keys[..batch.len()], verdicts);
        verdicts.iter().map(|verdict| u64::from(read(verdict))).sum()
    }
}

/// One key for each of two limits, both charged or neither.
struct Together(Limiter);

impl Decider for Together {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        let (user, address) = request.key.split_at(Names::LENGTH);
        read(&self.0.check_together(&[user, address]))
    }
}

fn together(setup: Setup) -> Box<dyn Decider> {
    let limit = bucket(setup.terms);
    let builder = Limiter::builder().limit("user", limit).limit("address", limit);
    Box::new(Together(builder.max_bytes(MAX_BYTES).build().expect("two limits are valid")))
}

/// A limit that is replaced while every key already has a state under the old one.
struct Changed {
    limiter: Limiter,
    setup: Setup,
}

impl Decider for Changed {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        read(&self.limiter.check(&request.key))
    }

    fn filled(&self) {
        let LimitNumbers { interval, burst } = self.setup.terms;
        let faster = bucket(LimitNumbers { interval: interval * 2 / 3, burst });
        self.limiter.set_limit("default", faster).expect("the limit exists");
    }
}

#[inline(always)]
fn read(verdict: &Verdict) -> bool {
    black_box(verdict.remaining());
    black_box(verdict.decision().reset_after);
    black_box(verdict.is_allowed())
}

/// One limit, as large as [`MAX_BYTES`].
pub fn limiter(limit: Limit) -> Limiter {
    bounded(limit, MAX_BYTES)
}

pub fn bounded(limit: Limit, max_bytes: u64) -> Limiter {
    let builder = Limiter::builder().limit("default", limit).max_bytes(max_bytes);
    builder.build().expect("one limit is valid")
}

pub fn bucket(terms: LimitNumbers) -> Limit {
    let rate = Rate::new(1, span(terms.interval));
    let builder = Limit::token_bucket(rate).burst(u64::from(terms.burst));
    builder.build().expect("terms are valid")
}

/// An interval that is no whole number of microseconds.
pub fn thirds(terms: LimitNumbers) -> Limit {
    let rate = Rate::new(3, Span::from_micros(span(terms.interval).as_micros() * 3 + 1));
    let builder = Limit::token_bucket(rate).burst(u64::from(terms.burst));
    builder.build().expect("terms are valid")
}

pub fn fixed_window() -> Limit {
    Limit::fixed_window(month()).build().expect("a month is a window")
}

pub fn sliding_window() -> Limit {
    Limit::sliding_window(month()).build().expect("a month is a window")
}

/// A window that will not end during the run, so that every key stays live.
fn month() -> Rate {
    Rate::new(1_000_000_000, Span::from_secs(30 * 86_400))
}

fn span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).expect("an interval is short"))
}
