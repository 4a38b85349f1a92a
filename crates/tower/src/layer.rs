//! The layer and its options.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tidegate::Limiter;
#[cfg(feature = "redis")]
use tidegate::Shared;
use tidegate::concurrency::{Class, ConcurrencyLimiter};
use tidegate::policy::PolicyLimiter;
use tidegate::store::Store;
use tower_layer::Layer;

use crate::answer::Answers;
use crate::event::Event;
use crate::identify::Identify;
use crate::service::RateLimit;
use crate::source::{ByLimit, ByPolicy, Decide, NoLimits};

/// Limits the requests of a service. Clones share one state.
///
/// The response to a denied request is 429, or 503 if the server sheds load or its store is
/// unavailable. The error type of the service does not change.
#[derive(Clone)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

/// When the permit of a [concurrency limiter](RateLimitLayer::concurrency) and the places in in-flight
/// limits are released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// When the response body ends, fails or is dropped.
    #[default]
    Body,
    /// When the head of the response is ready: for downloads whose readers are slow.
    Head,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) source: Arc<dyn Decide>,
    pub(crate) answers: Answers,
    pub(crate) hold: Hold,
    pub(crate) is_shadow: bool,
    pub(crate) admits_on_failure: bool,
    pub(crate) concurrency: Option<ConcurrencyLimiter>,
    pub(crate) cost: Option<Reader<u64>>,
    pub(crate) class: Option<Reader<Class>>,
    pub(crate) observe: Option<Observer>,
}

/// Reads a value from the head of a request.
pub(crate) type Reader<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Called with each event.
pub(crate) type Observer = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// A limiter without a source of keys yet; see [`RateLimitLayer::limit`].
#[derive(Clone, Debug)]
#[must_use = "choose a key with `identify`"]
pub struct Unkeyed<L>(L);

impl RateLimitLayer {
    /// Limits requests by the `requests` rules of a domain, with state in memory or in a shared store. The
    /// policy can be [replaced](PolicyLimiter::replace) while the service runs.
    ///
    /// An ambiguous request, which servers would read in different ways, gets 400. If the policy
    /// has no such domain, or the domain has no `requests`, every request gets 500: serving the
    /// requests without limits could go unnoticed.
    pub fn policy<S: Store + 'static>(limiter: PolicyLimiter<S>, domain: &str) -> Self {
        Self::new(ByPolicy { limiter, domain: domain.into() })
    }

    /// Limits requests by one limiter, with state in memory or in a shared store;
    /// [`Unkeyed::identify`] chooses the key.
    pub const fn limit<S>(limiter: Limiter<S>) -> Unkeyed<Limiter<S>> {
        Unkeyed(limiter)
    }

    /// Protects a service from overload, without limits per client: a [concurrency](Self::concurrency) limiter
    /// alone.
    ///
    /// ```
    /// use tidegate::concurrency::ConcurrencyLimiter;
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::protect(ConcurrencyLimiter::adaptive().build());
    /// ```
    pub fn protect(limiter: ConcurrencyLimiter) -> Self {
        Self::new(NoLimits).concurrency(limiter)
    }

    fn new(source: impl Decide + 'static) -> Self {
        let settings = Settings {
            source: Arc::new(source),
            answers: Answers::default(),
            hold: Hold::default(),
            is_shadow: false,
            admits_on_failure: false,
            concurrency: None,
            cost: None,
            class: None,
            observe: None,
        };
        Self { settings: Arc::new(settings) }
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// What responses contain besides their status; problem details and `RateLimit` fields unless set.
    #[must_use]
    pub fn answers(self, answers: Answers) -> Self {
        self.set(|settings| settings.answers = answers)
    }

    /// Limits the requests in progress, after their rate. A request without a permit waits in the
    /// limiter's queue; if the limiter sheds it, it gets 503 and its units are returned.
    #[must_use]
    pub fn concurrency(self, limiter: ConcurrencyLimiter) -> Self {
        self.set(|settings| settings.concurrency = Some(limiter))
    }

    /// The class of a request for the concurrency limiter; [`Class::CRITICAL`] unless set.
    #[must_use]
    pub fn class(self, class: impl Fn(&Parts) -> Class + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.class = Some(Arc::new(class)))
    }

    /// When permits are released.
    #[must_use]
    pub fn hold(self, hold: Hold) -> Self {
        self.set(|settings| settings.hold = hold)
    }

    /// The cost of a request. Unless set, it is 1, or the cost in the policy. [`Cost`](crate::Cost)
    /// in the extensions of a request takes precedence.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Decides and counts requests, but also serves those over a limit. Adds no delay and no header
    /// fields. A concurrency limiter has a shadow mode of its own.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.set(|settings| settings.is_shadow = true)
    }

    /// Serves requests while the store gives no decision; by default they get 503. A
    /// [`SharedStore`](tidegate::store::shared::SharedStore) decides by `on_store_failure` instead.
    #[must_use]
    pub fn admit_on_store_failure(self) -> Self {
        self.set(|settings| settings.admits_on_failure = true)
    }

    /// Calls `observe` with each decision about a request: for metrics and logs.
    #[must_use]
    pub fn observe(self, observe: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.observe = Some(Arc::new(observe)))
    }
}

impl Unkeyed<Limiter> {
    /// Charges each request to the key that `identify` extracts.
    pub fn identify(self, identify: impl Identify) -> RateLimitLayer {
        RateLimitLayer::new(ByLimit { limiter: self.0, identify })
    }
}

#[cfg(feature = "redis")]
impl<S: Store + 'static> Unkeyed<Limiter<Shared<S>>> {
    /// Charges each request to the key that `identify` extracts.
    pub fn identify(self, identify: impl Identify) -> RateLimitLayer {
        RateLimitLayer::new(ByLimit { limiter: self.0, identify })
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.settings))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("answers", &self.answers)
            .field("hold", &self.hold)
            .field("is_shadow", &self.is_shadow)
            .field("concurrency", &self.concurrency.is_some())
            .finish_non_exhaustive()
    }
}
