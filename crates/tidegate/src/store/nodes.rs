//! How many nodes share a store, and which policy each of them holds.

use std::fmt;
use std::num::{NonZeroU32, TryFromIntError};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The number of nodes that share the limits of a store. Clones are handles to the same number.
#[derive(Clone, Debug)]
pub struct Nodes {
    count: Arc<AtomicU32>,
    is_auto: bool,
}

impl Nodes {
    /// A number that never changes.
    #[doc(hidden)]
    pub fn fixed(count: NonZeroU32) -> Self {
        Self { count: Arc::new(AtomicU32::new(count.get())), is_auto: false }
    }

    /// A number that follows the registry of a store. It is 1 until the registry was first read,
    /// and stays 1 without a registry. `RedisStore::nodes` returns one that follows its registry.
    #[doc(hidden)]
    pub fn auto() -> Self {
        Self { count: Arc::new(AtomicU32::new(1)), is_auto: true }
    }

    /// The number as of now.
    #[inline]
    #[doc(hidden)]
    pub fn count(&self) -> NonZeroU32 {
        NonZeroU32::new(self.count.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Whether the number follows a registry.
    #[doc(hidden)]
    pub const fn is_auto(&self) -> bool {
        self.is_auto
    }

    #[cfg(feature = "redis")]
    pub(super) fn set(&self, count: u32) {
        self.count.store(count.max(1), Ordering::Relaxed);
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self::auto()
    }
}

impl From<NonZeroU32> for Nodes {
    fn from(count: NonZeroU32) -> Self {
        Self::fixed(count)
    }
}

impl TryFrom<u32> for Nodes {
    type Error = TryFromIntError;

    fn try_from(count: u32) -> Result<Self, TryFromIntError> {
        NonZeroU32::try_from(count).map(Self::fixed)
    }
}

/// Equal if both have the same number now and both or neither follow a registry.
impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        (self.count(), self.is_auto) == (other.count(), other.is_auto)
    }
}

impl Eq for Nodes {}

/// The policy of one domain on a node. The revision is the same on every node that loaded the same
/// policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[doc(hidden)]
pub struct DomainRevision {
    /// The name of the domain.
    pub domain: Box<str>,
    /// A hash of its policy.
    pub revision: u64,
}

impl fmt::Display for DomainRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {}", self.revision, self.domain)
    }
}

type Source = Box<dyn Fn() -> Vec<DomainRevision> + Send + Sync>;

/// The source from which a store reads the domains and policies that this node serves. Clones are
/// handles to the same source.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct Revisions(Arc<OnceLock<Source>>);

impl Revisions {
    /// Sets the source. Only the first call counts; it returns false for any other.
    pub fn publish(
        &self,
        source: impl Fn() -> Vec<DomainRevision> + Send + Sync + 'static,
    ) -> bool {
        self.0.set(Box::new(source)).is_ok()
    }

    /// The domains that this node serves now; `None` without a source.
    pub fn current(&self) -> Option<Vec<DomainRevision>> {
        self.0.get().map(|source| source())
    }
}

impl fmt::Debug for Revisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Revisions").field(&self.current()).finish()
    }
}
