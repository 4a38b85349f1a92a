//! A layer with a bug, which passes on everything else.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Poll;

use tidegate::Explanation;
use tidegate::store::lease::LEASE;
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError, Tier};
use tidegate_core::{Algorithm, Decision, Limit, Op, Rate, Span, State, Timestamp};
use tidegate_sim::world::NodeStack;

/// The bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Returns the units of a command that timed out, although it may not have been carried out.
    RefundsTimeouts,
    /// Sends a command again that timed out, although it may have been carried out.
    Retries,
    /// Admits a request whose command timed out.
    AdmitsTimeouts,
    /// Sends a probe after a timeout, while the request waits.
    WaitsForProbe,
    /// Repeats a denial for so long, whatever the limit says.
    RepeatsDenials(Span),
    /// Debits twice.
    DebitsTwice,
    /// Drops debits, and reports them as made.
    DropsDebits,
    /// Decides by an earlier time, so that leases last longer.
    IsLate,
    /// Says that windows end later than they do.
    StretchesWindows,
    /// Decides by this limit instead of the charge's.
    Uses(Limit),
    /// Decides by the first limit that it sees.
    KeepsFirstLimit,
    /// Adds to a leased bucket what it should take off, once the bucket has become smaller.
    EnlargesForLeases,
    /// Releases a place as soon as it is taken.
    ReleasesAtOnce,
    /// Returns leased units twice.
    ReturnsTwice,
    /// Takes a command that timed out for granted.
    PresumesGrants,
    /// Decides each charge of a request alone, where it is all or nothing.
    DecidesEach,
    /// Ignores pre-limits.
    IgnoresPreLimits,
}

#[derive(Debug)]
pub(crate) struct Layer<S> {
    store: S,
    bug: Bug,
    denied: Mutex<HashMap<Vec<u8>, (Timestamp, Decision)>>,
    first: OnceLock<Limit>,
}

impl<S> Layer<S> {
    pub(crate) fn new(store: S, bug: Bug) -> Self {
        Self { store, bug, denied: Mutex::default(), first: OnceLock::new() }
    }

    /// The limit that it decides by instead of this one.
    fn other_limit(&self, limit: &Limit) -> Option<Limit> {
        let first = self.first.get_or_init(|| *limit);
        let capacity =
            |limit: &Limit| if let Limit::Bucket(it) = limit { it.capacity() } else { 0 };
        match self.bug {
            Bug::Uses(other) => Some(other),
            Bug::KeepsFirstLimit => Some(*first),
            Bug::EnlargesForLeases if capacity(limit) < capacity(first) => enlarged(limit),
            _ => None,
        }
    }

    fn time(&self, now: Timestamp) -> Timestamp {
        if self.bug == Bug::IsLate { now - Span::from_millis(50) } else { now }
    }
}

/// A leased bucket with its whole burst, and what nodes may hold on top of it.
fn enlarged(limit: &Limit) -> Option<Limit> {
    let Limit::Bucket(bucket) = limit else { return None };
    let (one, parts) = (bucket.time_of(1)?, bucket.denominator());
    let time = one.ticks * parts + one.part;
    let held = (LEASE.as_micros() * parts).div_ceil(time);
    let rate = Rate::new(parts, Span::from_micros(time));
    Limit::token_bucket(rate).burst(bucket.capacity() + 2 * held).build().ok()
}

impl<S: NodeStack> NodeStack for Layer<S> {
    async fn close(&self) {
        self.store.close().await;
    }
}

impl<S: Store> Layer<S> {
    async fn after_timeout(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let Op::Take(cost) = batch.charges[0].op else { return Err(StoreError::Timeout) };
        let ask = async |op| {
            let asked = Charge { op, ..batch.charges[0] };
            self.store.decide(now, Batch::one(&asked), &mut Vec::new()).await
        };
        match self.bug {
            Bug::RefundsTimeouts => {
                // Sent, and not waited for.
                let mut back = pin!(ask(Op::Return(cost)));
                poll_fn(|context| Poll::Ready(back.as_mut().poll(context).is_ready())).await;
            }
            Bug::Retries => return self.store.decide(now, batch, decisions).await,
            Bug::AdmitsTimeouts => return Ok(DecisionSource::Store),
            Bug::WaitsForProbe => {
                let _ = ask(Op::Read(0)).await;
            }
            _ => {}
        }
        Err(StoreError::Timeout)
    }

    async fn repeat_denial(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
        longest: Span,
    ) -> Result<DecisionSource, StoreError> {
        let text = batch.charges[0].key.text.to_vec();
        let known = self.denied.lock().unwrap_or_else(PoisonError::into_inner).get(&text).copied();
        if let Some((_, denial)) = known.filter(|(at, _)| now.since(*at) < longest) {
            decisions.push(denial);
            return Ok(DecisionSource::Store);
        }
        let source = self.store.decide(now, batch, decisions).await?;
        if let Some(denial) = decisions.last().filter(|decision| !decision.is_allowed()) {
            let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
            denied.insert(text, (now, *denial));
        }
        Ok(source)
    }

    /// The bugs of debits, returns and grants, which are decided each alone.
    async fn decide_each(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Option<Result<DecisionSource, StoreError>> {
        let all = |is_so: fn(&Op) -> bool| batch.charges.iter().all(|it| is_so(&it.op));
        let granted = |it: &Charge<'_>| it.limit.decide(&mut State::default(), now, it.op);
        let store = &self.store;
        match self.bug {
            Bug::DebitsTwice if all(|op| matches!(op, Op::Force(_))) => {
                store.decide(now, batch, &mut Vec::new()).await.err().map(Err)
            }
            Bug::ReturnsTwice if all(|op| matches!(op, Op::Return(_))) => {
                store.decide(now, batch, &mut Vec::new()).await.err().map(Err)
            }
            Bug::PresumesGrants if all(|op| matches!(op, Op::Take(_))) => {
                let answer = store.decide(now, batch, decisions).await;
                if answer != Err(StoreError::Timeout) {
                    return Some(answer);
                }
                decisions.extend(batch.charges.iter().map(granted));
                Some(Ok(DecisionSource::Store))
            }
            Bug::DropsDebits if all(|op| matches!(op, Op::Force(_))) => {
                decisions.extend(batch.charges.iter().map(granted));
                Some(Ok(DecisionSource::Store))
            }
            Bug::StretchesWindows => {
                let before = decisions.len();
                let answer = store.decide(now, batch, decisions).await;
                for decision in &mut decisions[before..] {
                    decision.reset_after = decision.reset_after + Span::from_millis(50);
                }
                Some(answer)
            }
            _ => None,
        }
    }
}

impl<S: Store> Store for Layer<S> {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        if let (Bug::RepeatsDenials(longest), Op::Take(_)) = (self.bug, charges[0].op) {
            return self.repeat_denial(now, batch, decisions, longest).await;
        }
        if !batch.is_all_or_nothing()
            && let Some(answer) = self.decide_each(self.time(now), batch, decisions).await
        {
            return answer;
        }
        if self.bug == Bug::DecidesEach {
            let each = Batch { is_together: false, ..batch };
            return self.store.decide(now, each, decisions).await;
        }
        if self.bug == Bug::IgnoresPreLimits {
            let others = charges.iter().filter(|it| it.options.tier != Tier::Local);
            let others: Vec<_> = others.copied().collect();
            let others = Batch { charges: &others, ..batch };
            return self.store.decide(now, others, decisions).await;
        }
        if let Some(limit) = &self.other_limit(charges[0].limit) {
            let charges: Vec<_> = charges.iter().map(|it| Charge { limit, ..*it }).collect();
            return self.store.decide(now, Batch { charges: &charges, ..batch }, decisions).await;
        }
        match self.store.decide(self.time(now), batch, decisions).await {
            Ok(source) if self.bug == Bug::ReleasesAtOnce => {
                if let Some(lease) = decisions.last().and_then(|it| it.lease) {
                    let left = Charge { op: Op::Release(lease), ..charges[0] };
                    let _ = self.store.decide(now, Batch::one(&left), &mut Vec::new()).await;
                }
                Ok(source)
            }
            Err(StoreError::Timeout) => self.after_timeout(now, batch, decisions).await,
            answer => answer,
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}
