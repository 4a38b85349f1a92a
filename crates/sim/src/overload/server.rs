//! Simulated servers, in which concurrent requests slow each other down.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::{Span, Timestamp};

use super::scenario::ServerKind;

/// Requests in progress, by number.
#[derive(Debug)]
pub(super) struct Server {
    kind: ServerKind,
    /// Workers, cores or connections.
    parallel: u64,
    in_progress: u64,
    /// Pool and connections: waiting requests, with their work.
    waiting: VecDeque<(usize, Span)>,
    /// Requests in work, by the instant at which they end; for cores, by virtual time.
    working: BinaryHeap<Reverse<(u64, usize)>>,
    /// Cores: the work that each request has received since the start, in 1/1024 µs, and the time
    /// of the last update.
    shared: u64,
    shared_until: Timestamp,
}

/// Virtual time has a finer step than microseconds.
const FINE: u64 = 1_024;

impl Server {
    pub(super) fn new(kind: ServerKind) -> Self {
        Self {
            kind,
            parallel: kind.parallel(),
            in_progress: 0,
            waiting: VecDeque::new(),
            working: BinaryHeap::new(),
            shared: 0,
            shared_until: Timestamp::EPOCH,
        }
    }

    /// Lets workers fail or return. Requests in work continue.
    pub(super) fn set_parallel(&mut self, now: Timestamp, percent: u64) {
        self.share(now);
        self.parallel = (self.kind.parallel() * percent / 100).max(1);
        self.start(now);
    }

    pub(super) fn accept(&mut self, now: Timestamp, request: usize, work: Span) {
        self.in_progress += 1;
        match self.kind {
            ServerKind::Pool | ServerKind::Connections => {
                self.waiting.push_back((request, work));
                self.start(now);
            }
            ServerKind::Cpu => {
                // The request is counted as started from here on.
                self.in_progress -= 1;
                self.share(now);
                self.in_progress += 1;
                let end = self.shared + work.as_micros() * FINE;
                self.working.push(Reverse((end, request)));
            }
            ServerKind::Thrashing => {
                // The capacity is reached with 16 requests at half speed.
                let slowed = work.as_micros() * (256 + self.in_progress * self.in_progress) / 256;
                let end = now + Span::from_micros(slowed);
                self.working.push(Reverse((end.as_micros(), request)));
            }
        }
    }

    /// When the next request ends.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        let Reverse((end, _)) = self.working.peek()?;
        if self.kind != ServerKind::Cpu {
            return Some(Timestamp::from_micros(*end));
        }
        let left = end.saturating_sub(self.shared);
        let micros = left * self.in_progress.max(self.parallel) / (self.parallel * FINE);
        Some(self.shared_until + Span::from_micros(micros + 1))
    }

    /// Ends the request that is next.
    pub(super) fn end(&mut self, now: Timestamp) -> Option<usize> {
        self.share(now);
        let Reverse((_, request)) = self.working.pop()?;
        self.in_progress -= 1;
        self.start(now);
        Some(request)
    }

    fn start(&mut self, now: Timestamp) {
        if self.kind == ServerKind::Cpu {
            return;
        }
        while (self.working.len() as u64) < self.parallel
            && let Some((request, work)) = self.waiting.pop_front()
        {
            self.working.push(Reverse(((now + work).as_micros(), request)));
        }
    }

    /// Cores: gives every request its part of the time since the last change.
    fn share(&mut self, now: Timestamp) {
        let passed = now.since(self.shared_until).as_micros();
        self.shared_until = now;
        if self.kind == ServerKind::Cpu && self.in_progress > 0 {
            let each = passed * FINE * self.parallel / self.in_progress.max(self.parallel);
            self.shared += each;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of `count` requests of 10 ms, all sent at once, ends, in milliseconds.
    fn ends(kind: ServerKind, count: usize) -> Vec<u64> {
        let mut server = Server::new(kind);
        let start = Timestamp::from_secs(1);
        (0..count).for_each(|request| server.accept(start, request, Span::from_millis(10)));
        let mut ends = Vec::new();
        while let Some(end) = server.next_end() {
            assert!(server.end(end).is_some());
            ends.push((end.since(start).as_micros() + 500) / 1_000);
        }
        ends
    }

    #[test]
    fn a_pool_serves_as_many_at_once_as_it_has_workers() {
        let ends = ends(ServerKind::Pool, 40);
        assert_eq!((ends[0], ends[15], ends[16], ends[39]), (10, 10, 20, 30));
    }

    #[test]
    fn cores_are_shared_by_all_requests() {
        assert_eq!(ends(ServerKind::Cpu, 2), [10, 10]);
        assert_eq!(ends(ServerKind::Cpu, 8), [40; 8]);
    }

    #[test]
    fn a_thrashing_server_is_slower_with_every_request() {
        assert_eq!(ends(ServerKind::Thrashing, 1), [10]);
        assert_eq!(*ends(ServerKind::Thrashing, 64).last().unwrap(), 170);
    }
}
