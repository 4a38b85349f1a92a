//! Undoes the charge of a request that was admitted and then not served.

use tidegate_core::{Decision, Limit, Op, Span, Timestamp};

use super::{Batch, Charge, Store, StoreError};

/// The decision of a charge, and its time by the store's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) at: Timestamp,
}

/// Returns the units that `charge` took.
///
/// - Nothing is returned if the charge was denied, or if its units are back by now.
/// - A place of an in-flight limit is not returned; its permit releases it.
/// - The slot of a leaky bucket is returned only if it is the last one given out. Later requests
///   already wait for their slots, so an earlier slot would be given out twice. A read first shows
///   whether the slot is the last; if another request arrives between read and return, the state
///   after the return shows it, and the slot is taken again.
pub(crate) async fn undo<S: Store>(
    store: &S,
    local: Timestamp,
    charge: &Charge<'_>,
    answered: Answered<'_>,
) -> Result<(), StoreError> {
    let Op::Take(cost @ 1..) = charge.op else { return Ok(()) };
    let Answered { decision, at } = answered;
    let is_back = store.clock(local).since(at) >= decision.reset_after;
    if !decision.is_allowed() || is_back || matches!(charge.limit, Limit::InFlight(_)) {
        return Ok(());
    }
    let slot = match charge.limit {
        Limit::Bucket(bucket) if bucket.burst() < bucket.capacity() => {
            let time_of = |units| bucket.time_of(units).map(|it| Span::from_micros(it.ticks));
            time_of(1).zip(time_of(cost))
        }
        _ => {
            ask(store, local, charge, Op::Return(cost)).await?;
            return Ok(());
        }
    };
    // The instant at which the bucket is full identifies a slot: each slot is an interval later.
    let (Some((interval, length)), taken) = (slot, at + decision.reset_after) else {
        return Ok(());
    };
    let is_at = |full_at: Timestamp, expected: Timestamp| {
        let apart = full_at.as_micros().abs_diff(expected.as_micros());
        apart < (interval.as_micros() / 2).max(1)
    };
    let full_at = ask(store, local, charge, Op::Read(0)).await?;
    if !is_at(full_at, taken) {
        return Ok(());
    }
    let full_at = ask(store, local, charge, Op::Return(cost)).await?;
    let returned = (taken - length).max(store.clock(local));
    if full_at > returned && !is_at(full_at, returned) {
        ask(store, local, charge, Op::Force(cost)).await?;
    }
    Ok(())
}

/// Carries out an operation on the key of `charge`, and returns the instant from which it is idle.
async fn ask<S: Store>(
    store: &S,
    local: Timestamp,
    charge: &Charge<'_>,
    op: Op,
) -> Result<Timestamp, StoreError> {
    let mut decisions = Vec::with_capacity(1);
    let charge = Charge { op, ..*charge };
    store.decide(local, Batch::one(&charge), &mut decisions).await?;
    let reset_after = decisions.first().map_or(Span::ZERO, |decision| decision.reset_after);
    Ok(store.clock(local) + reset_after)
}
