//! A store behind a deny cache and the model, side by side on the same requests.

use tidegate::store::background::{Background, Runtime, Work};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{Batch, Charge, LimitOptions, Store};
use tidegate::{Key, Limit, ManualClock, Op, Scope, Span, Timestamp};
use tidegate_core::algorithm::bucket::{BucketState, Moment};
use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Algorithm, State};

use crate::subject::Subject;
use crate::trace::{Step, Trace};

const TRACE_LENGTH: u64 = 256;
/// The largest denominator of a bucket's state that the memory store keeps in one word.
const SMALL: u64 = 1_024;
/// The largest instant that the scripts can represent exactly.
const LATEST: Timestamp = Timestamp::from_micros(5_800_000_000_000_000);
/// Longer than any limit denies, so that every denial is repeated as long as it is valid.
const FOR_EVER: Span = Span::MAX;

/// A runtime that does no background work.
struct Idle;

impl Runtime for Idle {
    fn spawn(&self, _work: Work) {}

    fn sleep(&self, _span: Span) -> Work {
        Box::pin(std::future::pending())
    }

    fn chance(&self) -> u64 {
        0
    }
}

/// The production stack in front of a store, without background work.
///
/// # Panics
/// If the system refuses to reserve address space.
pub fn cached<S: Store + 'static>(store: S, options: &SharedOptions) -> SharedStore<S> {
    let (clock, background) = (ManualClock::at(Timestamp::from_secs(1)), Background::new(Idle));
    SharedStore::repeatable(store, options, clock.into(), (&background, 1)).expect("address space")
}

/// Number of denials that were repeated.
pub fn hits<S: Store + 'static>(cache: &SharedStore<S>) -> u64 {
    cache.stats().deny_cache_hits
}

/// Compares at least `decisions` decisions on one node, trace by trace: the verdict and every
/// field. Returns their number.
///
/// # Panics
/// At the first difference, with the history that led to it.
pub async fn compare<S: Store + 'static>(
    cache: &SharedStore<S>,
    subject: Subject,
    seed: u64,
    decisions: u64,
) -> u64 {
    let (mut decided, mut trace) = (0, seed << 32);
    while decided < decisions {
        decided += run_trace(cache, subject, trace).await;
        trace += 1;
    }
    decided
}

async fn run_trace<S: Store + 'static>(cache: &SharedStore<S>, subject: Subject, seed: u64) -> u64 {
    let mut trace = Trace::new(subject, seed);
    let (mut numbers, mut state, mut history) = (None, State::default(), Vec::new());
    let text = format!("{subject}:{seed}");
    let options = match seed % 2 {
        0 => LimitOptions::default(),
        _ => LimitOptions::default().refund_staleness(FOR_EVER),
    };
    let (mut decided, mut uncounted, mut renumbered) = (0, false, false);
    // Above the revisions of all earlier traces.
    let (mut revision, mut before) = ((seed & 0xffff_ffff) * TRACE_LENGTH, hits(cache));
    while decided < TRACE_LENGTH {
        let step = trace.step();
        history.push(step.to_string());
        let (now, mut op) = match step {
            Step::Renumber(next) => {
                numbers = next.limit().ok();
                revision += 1;
                renumbered = true;
                continue;
            }
            Step::Decide(now, op) => (now, op),
        };
        let Some(limit) = &numbers else { continue };
        if now > LATEST {
            break;
        }
        // As documented, the store does not count the denials that the deny cache repeated. The
        // difference shows only after the limit changes, and in operations other than takes and
        // reads.
        if uncounted && (renumbered || !matches!(op, Op::Take(_) | Op::Read(_))) {
            (op, uncounted) = (Op::Reset, false);
        }
        renumbered = false;
        let key = Key::new(Scope::new("deny", limit), text.as_bytes());
        let mut expected = limit.decide(&mut state, now, op);
        if cache.store().is_local() {
            round_up(limit, &mut state);
        }
        let mut found = Vec::new();
        let charge = Charge::new(key, limit, op).on(options);
        let answered = cache.decide(now, Batch::one(&charge).revision(revision), &mut found).await;
        let is_repeated = hits(cache) > before;
        before = hits(cache);
        if is_repeated && matches!(limit, Limit::SlidingLog(_)) {
            expected.remaining = found[0].remaining.min(expected.remaining);
        }
        uncounted |= is_repeated && counts_denied(limit);
        let recent = history[history.len().saturating_sub(12)..].join("\n");
        assert!(answered.is_ok(), "{text}: {answered:?} after\n{recent}");
        assert_eq!(found, [expected], "{text} {limit:?} hit {is_repeated} after\n{recent}");
        trace.learn(&expected);
        decided += 1;
    }
    decided
}

/// Rounds a state up as the memory store does when the state moves to the table of small
/// denominators, even if the operation writes nothing. The state becomes later by less than a tick,
/// which admits no more.
fn round_up(limit: &Limit, state: &mut State) {
    let (Limit::Bucket(bucket), State::Bucket(BucketState { full_at })) = (limit, state) else {
        return;
    };
    if bucket.denominator() <= SMALL && full_at.part >= SMALL {
        *full_at = Moment { ticks: full_at.ticks + 1, part: 0 };
    }
}

fn counts_denied(limit: &Limit) -> bool {
    matches!(limit, Limit::FixedWindow(window) if window.denied() == Denied::Counted)
}
