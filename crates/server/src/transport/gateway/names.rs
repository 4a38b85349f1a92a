//! Host names of upstreams.
//!
//! The system resolves names in threads. One thread at a time resolves the name of an address, whatever the number
//! of connections that wait for it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::lookup_host;
use tokio::sync::Mutex;

/// The most sockets of a name that are kept.
const MAX_SOCKETS: usize = 64;

/// The latest addresses of a name.
#[derive(Debug, Default)]
pub(super) struct Names {
    last: Mutex<Option<Arc<[SocketAddr]>>>,
    /// Number of results so far.
    results: AtomicU64,
}

impl Names {
    /// Resolves a name, or uses a result that arrived while this call waited for its turn.
    pub(super) async fn look_up(&self, host: &str, port: u16) -> io::Result<Arc<[SocketAddr]>> {
        let seen = self.results.load(Ordering::Acquire);
        let mut last = self.last.lock().await;
        if self.results.load(Ordering::Acquire) != seen
            && let Some(sockets) = &*last
        {
            return Ok(Arc::clone(sockets));
        }
        let sockets: Arc<[_]> = lookup_host((host, port)).await?.take(MAX_SOCKETS).collect();
        *last = Some(Arc::clone(&sockets));
        self.results.fetch_add(1, Ordering::AcqRel);
        Ok(sockets)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_name_is_resolved_once_for_all_that_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let names = Names::default();
            let all = (0..50).map(|_| names.look_up("localhost", 80));
            let found = futures_util::future::join_all(all).await;
            let is_local = |it: &SocketAddr| it.port() == 80 && IpAddr::is_loopback(&it.ip());
            assert!(found.iter().all(|it| it.as_ref().unwrap().iter().all(is_local)));
            assert_eq!(names.results.load(Ordering::Relaxed), 1);
            names.look_up("localhost", 80).await.unwrap();
            assert_eq!(names.results.load(Ordering::Relaxed), 2);
            assert!(names.look_up("no.such.name.invalid", 80).await.is_err());
        });
    }
}
