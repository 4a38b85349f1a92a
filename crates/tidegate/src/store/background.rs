//! Background work of the layers: probes and debits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tidegate_core::Span;

/// A boxed future.
pub type Work<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs background work. Production uses tokio; a simulation has its own runtime on simulated time.
pub trait Runtime: Send + Sync {
    /// Runs the work to its end.
    fn spawn(&self, work: Work);

    /// A future that is ready after this time.
    fn sleep(&self, span: Span) -> Work;

    /// A random number.
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
    /// A handle to this runtime.
    pub fn new(runtime: impl Runtime + 'static) -> Self {
        Self(Arc::new(runtime))
    }

    /// A handle to the tokio runtime that this is called in.
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
