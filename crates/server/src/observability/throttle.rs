//! Limits how often events that clients can cause are logged: once a second per kind. The next line
//! of a kind has the number of events that were suppressed.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Timestamp;

/// A kind of event that clients can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frequent {
    /// A connection was closed because there is no room for it.
    ConnectionRefused,
    /// A connection was closed because its address has too many connections.
    AddressRefused,
    /// A connection was closed because of its PROXY protocol header.
    HeaderRefused,
    /// The system returned an error instead of a connection.
    AcceptFailed,
    /// A TLS handshake failed.
    ClientRefused,
    /// A gRPC connection was closed because its client floods or does not read.
    ConnectionClosed,
    /// The policy has no such domain.
    UnknownDomain,
    /// No limit applies to a descriptor.
    UnmatchedDescriptor,
    /// The gateway got no connection to the service.
    UpstreamFailed,
}

impl Frequent {
    const COUNT: usize = Self::UpstreamFailed as usize + 1;
}

/// An event that may be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Number of events of this kind that were not logged since the last one; `None` if there are none.
    pub(crate) suppressed: Option<u64>,
}

/// One limit for each kind of event.
#[derive(Debug, Default)]
pub(crate) struct Throttle([Kind; Frequent::COUNT]);

#[derive(Debug, Default)]
struct Kind {
    /// The second from which the next event may be logged.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    /// Admits an event, or counts it as suppressed.
    pub(crate) fn admit(&self, kind: Frequent, now: Timestamp) -> Option<Admitted> {
        let kind = &self.0[kind as usize];
        let (second, next) = (now.as_micros() / 1_000_000, kind.next.load(Ordering::Relaxed));
        // Of several threads, one succeeds.
        let is_admitted = second >= next
            && kind
                .next
                .compare_exchange(next, second + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !is_admitted {
            kind.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let suppressed = kind.suppressed.swap(0, Ordering::Relaxed);
        Some(Admitted { suppressed: Some(suppressed).filter(|count| *count > 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_admitted_once_a_second_with_the_number_suppressed() {
        let throttle = Throttle::default();
        let admit = |kind, secs| throttle.admit(kind, Timestamp::from_secs(secs));
        let first = Some(Admitted { suppressed: None });
        assert_eq!(admit(Frequent::ClientRefused, 100), first);
        for _ in 0..1_000 {
            assert_eq!(admit(Frequent::ClientRefused, 100), None);
        }
        assert_eq!(admit(Frequent::UnknownDomain, 100), first, "kinds are independent");
        let next = Some(Admitted { suppressed: Some(1_000) });
        assert_eq!(admit(Frequent::ClientRefused, 101), next);
        assert_eq!(admit(Frequent::ClientRefused, 102), first);
    }
}
