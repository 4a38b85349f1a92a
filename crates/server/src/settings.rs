//! What a server is told at its start.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to speak the Redis protocol; nowhere if `None`. Port 0 is any that is free.
    pub resp: Option<SocketAddr>,
    /// Where to speak HTTP; nowhere if `None`.
    pub http: Option<SocketAddr>,
    /// What clients of the Redis protocol have to say first; nothing if `None`.
    pub password: Option<String>,
    /// How many threads answer.
    pub threads: NonZeroUsize,
    /// How many connections each door holds. One more is closed as soon as it is opened.
    pub max_connections: usize,
    /// A connection that has completed no request, or taken no answer, for this long is closed, at
    /// the latest after twice the time.
    pub idle_after: Duration,
    /// How long connections may take to finish once the server stops.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resp: None,
            http: None,
            password: None,
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            max_connections: 10_000,
            idle_after: Duration::from_secs(300),
            drain: Duration::from_secs(10),
        }
    }
}
