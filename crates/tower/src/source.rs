//! What decides requests: one limit, or a policy.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
#[cfg(feature = "redis")]
use tidegate::Shared;
use tidegate::policy::{CheckError, HttpOptions, PolicyLimiter};
use tidegate::store::Store;
use tidegate::{Limiter, Listing, Permit, Verdict};

use crate::identify::Identify;
use crate::request::peer;

/// A future that owns what it needs.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answer to a request, or why there is none.
pub(crate) type Decided = Result<(Verdict, Option<Permit>), CheckError>;

/// A decision, at once or later.
#[expect(clippy::large_enum_variant, reason = "a decision in memory must not allocate")]
pub(crate) enum Deciding {
    Ready(Parts, Decided),
    Waiting(Boxed<(Parts, Decided)>),
}

/// Decides requests.
pub(crate) trait Decide: Send + Sync {
    /// Charges a request; `cost` is `None` for the default.
    fn decide(&self, head: Parts, cost: Option<u64>, listing: Listing) -> Deciding;

    /// Returns the units that a request was charged.
    fn cancel(&self, head: Parts, cost: Option<u64>, verdict: Verdict) -> Boxed<()>;
}

/// One limiter for all requests, by key.
pub(crate) struct ByLimit<L, I> {
    pub(crate) limiter: L,
    pub(crate) identify: I,
}

impl<L, I: Identify> ByLimit<L, I> {
    /// The key; requests without one share the empty key.
    fn key<'r>(&self, head: &'r Parts) -> Cow<'r, [u8]> {
        self.identify.key(head).unwrap_or_default()
    }
}

impl<I: Identify> Decide for ByLimit<Limiter, I> {
    fn decide(&self, head: Parts, cost: Option<u64>, listing: Listing) -> Deciding {
        let decided = self.limiter.admit(&*self.key(&head), cost.unwrap_or(1), listing);
        Deciding::Ready(head, Ok(decided))
    }

    fn cancel(&self, head: Parts, cost: Option<u64>, verdict: Verdict) -> Boxed<()> {
        self.limiter.cancel(&*self.key(&head), cost.unwrap_or(1), &verdict);
        Box::pin(std::future::ready(()))
    }
}

#[cfg(feature = "redis")]
impl<S: Store + 'static, I: Identify> Decide for ByLimit<Limiter<Shared<S>>, I> {
    fn decide(&self, head: Parts, cost: Option<u64>, _: Listing) -> Deciding {
        let (limiter, key) = (self.limiter.clone(), self.key(&head).into_owned());
        begin(async move {
            let decided = limiter.admit(key, cost.unwrap_or(1)).await;
            (head, decided.map_err(CheckError::Store))
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
    fn decide(&self, head: Parts, cost: Option<u64>, _: Listing) -> Deciding {
        let (limiter, domain) = (self.limiter.clone(), Arc::clone(&self.domain));
        begin(async move {
            let options = HttpOptions { peer: peer(&head), hits: cost };
            let decided = limiter.admit_http(&domain, &head, options).await;
            (head, decided)
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

/// Polls a decision once: over memory it is ready.
fn begin(deciding: impl Future<Output = (Parts, Decided)> + Send + 'static) -> Deciding {
    let mut deciding: Boxed<(Parts, Decided)> = Box::pin(deciding);
    match now_or_later(&mut deciding) {
        Some((head, decided)) => Deciding::Ready(head, decided),
        None => Deciding::Waiting(deciding),
    }
}

/// The value of a future that does not wait; otherwise a task has to poll it again.
pub(crate) fn now_or_later<T>(future: &mut Boxed<T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
