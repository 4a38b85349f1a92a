//! Requests to a server, and those that wait in its queue.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_core::{Op, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::store::redis::wire::call::{Answered, Item};
use crate::store::redis::wire::script_args::{ScriptArgs, Work};
use crate::store::{Reserving, StoreError};

/// Charges that one script call decides, and the channel for their answer.
#[derive(Debug)]
pub(in crate::store::redis) struct Request {
    pub(in crate::store::redis) items: Vec<Item>,
    pub(in crate::store::redis) slot: u16,
    pub(in crate::store::redis) now: Timestamp,
    /// Number of redirections.
    pub(in crate::store::redis) hops: u8,
    pub(in crate::store::redis) asking: bool,
    /// Executed even if the caller no longer waits.
    pub(in crate::store::redis) unasked: bool,
    /// Its share of the requests in flight; released with the request.
    pub(in crate::store::redis) permit: Option<OwnedSemaphorePermit>,
    /// When it was queued, by the queue's own time.
    pub(in crate::store::redis) queued: Duration,
    /// `None` once the caller got the error that the reply is late.
    pub(in crate::store::redis) answer: Option<oneshot::Sender<Result<Answered, StoreError>>>,
}

impl Request {
    pub(in crate::store::redis) fn new(
        items: Vec<Item>,
        slot: u16,
        now: Timestamp,
        answer: oneshot::Sender<Result<Answered, StoreError>>,
    ) -> Self {
        let (hops, asking, permit, queued) = (0, false, None, Duration::ZERO);
        // A lease that is not released holds its units until it expires, and a release by id is
        // correct at any time. So is a settlement, by the id of its
        // reservation. A return of units is not: their window may be over.
        let unasked = items.iter().all(|item| {
            let ScriptArgs { work, reserving, .. } = item.script_args;
            Reserving::closes(reserving)
                || matches!(work, Work::Operate(Op::Release(_)) | Work::Undo { .. })
        });
        Self { items, slot, now, hops, asking, unasked, permit, queued, answer: Some(answer) }
    }

    /// Whether other requests depend on it: it frees units or leases, or renews a lease.
    pub(in crate::store::redis) fn gives_back(&self) -> bool {
        self.items.iter().all(|item| match item.script_args.work {
            Work::Operate(op) => {
                Reserving::closes(item.script_args.reserving)
                    || matches!(
                        op,
                        Op::Release(_)
                            | Op::Renew(_)
                            | Op::Return(_)
                            | Op::ReturnOwed { .. }
                            | Op::Reset
                    )
            }
            Work::Undo { .. } => true,
            Work::Dump => false,
        })
    }

    /// Whether the caller no longer waits, so that the charge would serve no request.
    pub(in crate::store::redis) fn is_pointless(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed) && !self.unasked
    }

    pub(in crate::store::redis) fn fail(mut self, error: StoreError) {
        self.expire(error);
    }

    /// Answers the caller with an error. The reply is still processed, because the server may have
    /// taken a lease that only this process can release.
    pub(in crate::store::redis) fn expire(&mut self, error: StoreError) {
        if let Some(answer) = self.answer.take() {
            // The caller may have given up.
            let _ = answer.send(Err(error));
        }
    }
}

/// Commands in flight for a slot, and requests that wait for them.
#[derive(Default)]
pub(in crate::store::redis) struct Waiting {
    pub(in crate::store::redis) in_flight: usize,
    pub(in crate::store::redis) requests: VecDeque<Request>,
}

impl Waiting {
    /// Refuses requests that were queued before `time`.
    pub(in crate::store::redis) fn expire(&mut self, time: Duration) {
        while self.requests.front().is_some_and(|request| request.queued < time) {
            let Some(mut request) = self.requests.pop_front() else { return };
            request.expire(StoreError::Overloaded);
            if !request.is_pointless() {
                request.queued = Duration::MAX;
                self.requests.push_back(request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{LeaseId, Limit, Rate};

    use super::*;

    fn request(op: Op, queued: u64) -> (Request, oneshot::Receiver<Result<Answered, StoreError>>) {
        let limit = Limit::token_bucket(Rate::per_second(1)).build().unwrap();
        let item = Item {
            name: Vec::new(),
            script_args: ScriptArgs { limit, work: Work::Operate(op), reserving: None },
        };
        let (answer, answered) = oneshot::channel();
        let mut request = Request::new(vec![item], 0, Timestamp::EPOCH, answer);
        request.queued = Duration::from_secs(queued);
        (request, answered)
    }

    /// Requests that release a lease are still executed.
    #[test]
    fn requests_that_were_queued_for_too_long_are_refused() {
        let release = Op::Release(LeaseId::new(1).unwrap());
        let each = [request(release, 1), request(Op::Take(1), 2), request(Op::Take(1), 3)];
        let (requests, mut answers): (VecDeque<_>, Vec<_>) = each.into_iter().unzip();
        let mut waiting = Waiting { in_flight: 0, requests };
        waiting.expire(Duration::from_secs(3));
        let overloaded = |answer: &mut oneshot::Receiver<_>| {
            matches!(answer.try_recv(), Ok(Err(StoreError::Overloaded)))
        };
        let refused: Vec<bool> = answers.iter_mut().map(overloaded).collect();
        assert_eq!((refused, waiting.requests.len()), (vec![true, true, false], 2));
        assert!(waiting.requests.iter().all(|request| !request.is_pointless()));
    }
}
