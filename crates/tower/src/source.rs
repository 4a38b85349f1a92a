//! The source of decisions: one limit, or a policy.

use std::borrow::Cow;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::request::Parts;
#[cfg(feature = "redis")]
use tidegate::Shared;
use tidegate::concurrency::{Shed, identity};
use tidegate::policy::{AdmittedHttp, CheckError, Guard, HttpOptions, PolicyLimiter};
use tidegate::store::{Store, StoreError};
use tidegate::verdict::AdmissionFields;
use tidegate::{Limiter, Listing, Permit, Verdict};

use crate::identify::Identify;
use crate::request::{Key, peer};

/// A future that borrows nothing.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answer to a request, or why there is none.
pub(crate) type Decided = Result<Answer, Refusal>;

/// The answer to a request. Every request moves it a few times, so fields that few requests have
/// are boxed.
#[derive(Default)]
pub(crate) struct Answer {
    /// `None` if the request is admitted without a decision.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) place: Option<Box<Permit>>,
    /// The header fields of an admission whose verdict lists no parts.
    pub(crate) fields: Option<AdmissionFields>,
    /// The concurrency limiter that a policy names for the request.
    pub(crate) guard: Option<Box<Guard>>,
}

impl Answer {
    /// Whether limits have admitted the request.
    pub(crate) fn is_admission(&self) -> bool {
        self.verdict.as_ref().is_some_and(Verdict::is_allowed)
    }

    fn new((verdict, place): (Verdict, Option<Permit>)) -> Self {
        Self { verdict: Some(verdict), place: place.map(Box::new), ..Self::default() }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The concurrency limiter of a policy shed the request before the store was called.
    Shed(Shed),
    /// The decision failed. The concurrency limiter that a policy names for the request still
    /// protects the servers.
    Failed(Box<CheckError>, Option<Box<Guard>>),
}

/// What the header fields of admissions will contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// `RateLimit` and `RateLimit-Policy`.
    RateLimit,
    /// `RateLimit`, `RateLimit-Policy`, and fields that need all parts of the verdict.
    Everything,
}

/// Decides requests.
pub(crate) trait Decide: Send + Sync {
    /// Charges a request at once; `None` if the decision may have to wait. `cost` is `None` for the
    /// default.
    fn decide_now(&self, _: &Parts, _: Option<u64>, _: Wanted) -> Option<Decided> {
        None
    }

    /// Whether decisions may call a shared store.
    fn is_remote(&self) -> bool {
        false
    }

    /// A hash of the user of a request, if the source knows one.
    fn user(&self, _: &Parts) -> Option<u64> {
        None
    }

    /// Charges a request.
    fn decide(&self, head: Parts, cost: Option<u64>) -> Boxed<(Parts, Decided)>;

    /// Returns the units that a request was charged.
    fn cancel(&self, head: Parts, cost: Option<u64>, verdict: Verdict) -> Boxed<()>;
}

/// No limits: every request is admitted without a decision.
pub(crate) struct NoLimits;

impl Decide for NoLimits {
    fn decide_now(&self, _: &Parts, _: Option<u64>, _: Wanted) -> Option<Decided> {
        Some(Ok(Answer::default()))
    }

    fn decide(&self, head: Parts, _: Option<u64>) -> Boxed<(Parts, Decided)> {
        Box::pin(std::future::ready((head, Ok(Answer::default()))))
    }

    fn cancel(&self, _: Parts, _: Option<u64>, _: Verdict) -> Boxed<()> {
        Box::pin(std::future::ready(()))
    }
}

/// One limiter for all requests, by key.
pub(crate) struct ByLimit<L, I> {
    pub(crate) limiter: L,
    pub(crate) identify: I,
}

impl<L, I: Identify> ByLimit<L, I> {
    /// A hash of the key; the same on every node.
    fn hash(&self, head: &Parts) -> Option<u64> {
        self.known_key(head).map(|key| identity(&key))
    }

    /// The key; requests without one share the empty key.
    fn key<'r>(&self, head: &'r Parts) -> Cow<'r, [u8]> {
        self.known_key(head).unwrap_or_default()
    }

    fn known_key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        match head.extensions.get::<Key>() {
            Some(Key(key)) => Some(Cow::Borrowed(key)),
            None => self.identify.key(head),
        }
    }
}

impl<I: Identify> Decide for ByLimit<Limiter, I> {
    fn user(&self, head: &Parts) -> Option<u64> {
        self.hash(head)
    }

    fn decide_now(&self, head: &Parts, cost: Option<u64>, wanted: Wanted) -> Option<Decided> {
        let (limiter, key, cost) = (&self.limiter, self.key(head), cost.unwrap_or(1));
        Some(Ok(match wanted {
            Wanted::Nothing => Answer::new(limiter.admit(&*key, cost, Listing::Denials)),
            Wanted::RateLimit => {
                let (verdict, place, fields) = limiter.admit_with_fields(&*key, cost);
                Answer { fields, ..Answer::new((verdict, place)) }
            }
            Wanted::Everything => Answer::new(limiter.admit(&*key, cost, Listing::Always)),
        }))
    }

    fn decide(&self, head: Parts, cost: Option<u64>) -> Boxed<(Parts, Decided)> {
        let decided = self.limiter.admit(&*self.key(&head), cost.unwrap_or(1), Listing::Always);
        Box::pin(std::future::ready((head, Ok(Answer::new(decided)))))
    }

    fn cancel(&self, head: Parts, cost: Option<u64>, verdict: Verdict) -> Boxed<()> {
        self.limiter.cancel(&*self.key(&head), cost.unwrap_or(1), &verdict);
        Box::pin(std::future::ready(()))
    }
}

#[cfg(feature = "redis")]
impl<S: Store + 'static, I: Identify> Decide for ByLimit<Limiter<Shared<S>>, I> {
    fn is_remote(&self) -> bool {
        true
    }

    fn user(&self, head: &Parts) -> Option<u64> {
        self.hash(head)
    }

    fn decide(&self, head: Parts, cost: Option<u64>) -> Boxed<(Parts, Decided)> {
        let (limiter, key) = (self.limiter.clone(), self.key(&head).into_owned());
        Box::pin(async move {
            let decided = limiter.admit(key, cost.unwrap_or(1)).await;
            let failed = |error| Refusal::Failed(Box::new(CheckError::Store(error)), None);
            (head, decided.map(Answer::new).map_err(failed))
        })
    }

    fn cancel(&self, head: Parts, cost: Option<u64>, verdict: Verdict) -> Boxed<()> {
        let (limiter, key) = (self.limiter.clone(), self.key(&head).into_owned());
        Box::pin(async move {
            // If the store is unavailable, the units stay taken.
            let _ = limiter.cancel(key, cost.unwrap_or(1), &verdict).await;
        })
    }
}

/// The limits of one domain of a policy.
pub(crate) struct ByPolicy<S> {
    pub(crate) limiter: PolicyLimiter<S>,
    pub(crate) domain: Arc<str>,
}

impl<S: Store + 'static> Decide for ByPolicy<S> {
    fn is_remote(&self) -> bool {
        !self.limiter.store().is_local()
    }

    fn decide_now(&self, head: &Parts, cost: Option<u64>, _: Wanted) -> Option<Decided> {
        if self.is_remote() {
            return None;
        }
        let options = HttpOptions { peer: peer(head), hits: cost };
        let deciding = pin!(self.limiter.admit_http(&self.domain, head, options));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admitted) => Some(decided(admitted)),
            // Memory never waits.
            Poll::Pending => Some(decided(Err(CheckError::Store(StoreError::Timeout)))),
        }
    }

    fn decide(&self, head: Parts, cost: Option<u64>) -> Boxed<(Parts, Decided)> {
        let (limiter, domain) = (self.limiter.clone(), Arc::clone(&self.domain));
        Box::pin(async move {
            let options = HttpOptions { peer: peer(&head), hits: cost };
            let admitted = limiter.admit_http(&domain, &head, options).await;
            (head, decided(admitted))
        })
    }

    fn cancel(&self, head: Parts, cost: Option<u64>, verdict: Verdict) -> Boxed<()> {
        let limiter = self.limiter.clone();
        Box::pin(async move {
            let options = HttpOptions { peer: peer(&head), hits: cost };
            // If the store is unavailable, the units stay taken.
            let _ = limiter.cancel_http(&head, options, &verdict).await;
        })
    }
}

/// The answer of a policy.
fn decided(admitted: Result<AdmittedHttp, CheckError>) -> Decided {
    match admitted {
        Ok(AdmittedHttp::Decided { verdict, permit, guard }) => {
            let guard = guard.map(Box::new);
            Ok(Answer { guard, ..Answer::new((verdict, permit)) })
        }
        Ok(AdmittedHttp::Shed(shed)) => Err(Refusal::Shed(shed)),
        Ok(AdmittedHttp::Undecided { error, guard }) => {
            Err(Refusal::Failed(Box::new(CheckError::Store(error)), guard.map(Box::new)))
        }
        Err(error) => Err(Refusal::Failed(Box::new(error), None)),
    }
}

/// The value of a future that does not wait; otherwise a task has to poll it again.
pub(crate) fn now_or_later<T>(future: &mut Boxed<T>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
