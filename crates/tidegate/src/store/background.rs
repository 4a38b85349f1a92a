//! Where layers do work that no request waits for: probes, bookings.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tidegate_core::Span;

/// Work, in a box.
pub type Work<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What work in the background needs of the world. Production has tokio's; a simulation has its own, on
/// invented time.
pub trait Runtime: Send + Sync {
    /// Sees to it that the work is done.
    fn spawn(&self, work: Work);

    /// Ends after so long.
    fn sleep(&self, span: Span) -> Work;

    /// Any number.
    fn chance(&self) -> u64;
}

/// A handle to a [`Runtime`].
#[derive(Clone)]
pub struct Background(Arc<dyn Runtime>);

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

impl Background {
    /// Work is done by this.
    pub fn new(runtime: impl Runtime + 'static) -> Self {
        Self(Arc::new(runtime))
    }

    /// Work is done in the tokio runtime that this is called in.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "redis")]
    pub fn tokio() -> Self {
        Self::new(Tokio(tokio::runtime::Handle::current()))
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(Box::pin(work));
    }

    pub(crate) async fn sleep(&self, span: Span) {
        self.0.sleep(span).await;
    }

    pub(crate) fn chance(&self) -> u64 {
        self.0.chance()
    }
}

#[cfg(feature = "redis")]
struct Tokio(tokio::runtime::Handle);

#[cfg(feature = "redis")]
impl Runtime for Tokio {
    fn spawn(&self, work: Work) {
        self.0.spawn(work);
    }

    fn sleep(&self, span: Span) -> Work {
        Box::pin(tokio::time::sleep(std::time::Duration::from_micros(span.as_micros())))
    }

    fn chance(&self) -> u64 {
        fastrand::u64(..)
    }
}
