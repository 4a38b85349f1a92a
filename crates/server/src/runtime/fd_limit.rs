//! The limit of file descriptors: raised as far as the system allows, with a reserve for the daemon itself, one for
//! each listener, and one for connections to upstreams.

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Reserved for policies, certificates and the store while clients hold all other descriptors.
const KEPT: u64 = 128;

/// Reserved for the connections of each listener, so that the admin API and health checks answer while clients
/// of another listener hold all the rest.
const RESERVED: u64 = 16;

/// File descriptors for the connections of one listener.
#[derive(Debug)]
pub(crate) struct Descriptors {
    reserved: Arc<Semaphore>,
    /// Descriptors that all listeners share.
    shared: Arc<Semaphore>,
}

impl Descriptors {
    /// Raises the limit as far as possible, and divides it among the listeners and `upstream` connections to upstreams.
    pub(crate) fn divide(listeners: usize, upstream: usize) -> impl Iterator<Item = Self> {
        let limits = getrlimit(Resource::Nofile);
        if limits.current < limits.maximum || limits.maximum.is_none() {
            // Without the permission to raise the limit, the old limit stays.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
        }
        // `None` is no limit; the settings bound the number of connections then.
        let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
        let (reserved, shared) = parts(open, listeners as u64, upstream as u64);
        let semaphore = |permits: u64| {
            let permits = usize::try_from(permits).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
        };
        let shared = semaphore(shared);
        (0..listeners)
            .map(move |_| Self { reserved: semaphore(reserved), shared: Arc::clone(&shared) })
    }

    /// Takes a descriptor for a connection, if one is left.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        // The reserve is used only when the shared descriptors are exhausted.
        let shared = Arc::clone(&self.shared).try_acquire_owned();
        shared.or_else(|_| Arc::clone(&self.reserved).try_acquire_owned()).ok()
    }
}

/// The number of descriptors reserved for each listener, and the number that all listeners share. Upstreams get as
/// many as they may use, at most half: a request over HTTP/1.1 needs one connection on either side.
fn parts(open: u64, listeners: u64, upstream: u64) -> (u64, u64) {
    let for_both = open - KEPT.min(open / 2);
    let for_connections = for_both - upstream.min(for_both / 2);
    let reserved = RESERVED.min(for_connections / 4 / listeners.max(1));
    (reserved, for_connections - reserved * listeners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listener_has_descriptors_of_its_own() {
        assert_eq!(parts(64, 4, 0), (2, 24));
        assert_eq!(parts(1_024, 4, 0), (16, 832));
        assert_eq!(parts(1_024, 0, 0), (16, 896));
        assert_eq!(parts(20_000, 5, 0), (16, 19_792));
    }

    #[test]
    fn connections_to_upstreams_have_descriptors_too() {
        assert_eq!(parts(1_024, 2, 100), (16, 764));
        assert_eq!(parts(1_024, 2, 1_024), (16, 416));
        assert_eq!(parts(20_000, 2, 1_024), (16, 18_816));
    }
}
