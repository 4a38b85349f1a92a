//! Runs a scenario, event by event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::{Span, Timestamp};

use super::arrivals::Draws;
use super::contender::Contender;
use super::limiter::{Arrival, Limiter};
use super::report::{OverloadReport, Second};
use super::scenario::{CLASSES, Phase, Scenario};
use super::server::Server;

/// The longest pause of a client before it tries again.
const RETRY_PAUSE: Span = Span::from_millis(40);

/// Runs `scenario` with one contender.
pub fn simulate(scenario: &Scenario, contender: Contender) -> OverloadReport {
    let mut run = Run::new(scenario, contender);
    let mut start = Timestamp::EPOCH;
    for phase in &scenario.phases {
        run.phase(start, *phase);
        start = start + Span::from_secs(phase.seconds);
        run.until(start);
    }
    OverloadReport { seconds: run.seconds, capacity: scenario.capacity() }
}

/// One attempt of a user's request.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    class: usize,
    sent: Timestamp,
    admitted: Timestamp,
    left: u32,
    /// False once the client has given up or the attempt has ended.
    is_awaited: bool,
}

/// Events other than arrivals and completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    GivesUp(usize),
    Retries { class: usize, left: u32 },
}

struct Run<'a> {
    scenario: &'a Scenario,
    phase: Phase,
    limiter: Limiter,
    server: Server,
    now: Timestamp,
    next_arrival: Timestamp,
    timers: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    attempts: Vec<Attempt>,
    /// Indexes of ended attempts, for reuse.
    free: Vec<usize>,
    arrivals: Draws,
    work: Draws,
    classes: Draws,
    pauses: Draws,
    seconds: Vec<Second>,
    second: Second,
    latencies: Vec<Span>,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, contender: Contender) -> Self {
        let draws = |stream| Draws::new(scenario.seed, stream);
        Self {
            scenario,
            phase: Phase::load(0, 0),
            limiter: Limiter::new(contender, scenario),
            server: Server::new(scenario.server),
            now: Timestamp::EPOCH,
            next_arrival: Timestamp::MAX,
            timers: BinaryHeap::new(),
            attempts: Vec::new(),
            free: Vec::new(),
            arrivals: draws(1),
            work: draws(2),
            classes: draws(3),
            pauses: draws(4),
            seconds: Vec::with_capacity(usize::try_from(scenario.seconds()).unwrap_or(0)),
            second: Second::default(),
            latencies: Vec::new(),
        }
    }

    fn phase(&mut self, now: Timestamp, phase: Phase) {
        self.phase = phase;
        self.server.set_parallel(now, phase.workers);
        self.next_arrival = now + self.gap();
    }

    fn gap(&mut self) -> Span {
        let per_second = self.scenario.capacity() * self.phase.load / 100;
        if per_second == 0 {
            return Span::MAX;
        }
        // In nanoseconds, because a microsecond is too coarse at a high load.
        let nanos = self.arrivals.exponential(Span::from_micros(1_000_000_000_000 / per_second));
        Span::from_micros(nanos.as_micros() / 1_000)
    }

    fn until(&mut self, end: Timestamp) {
        loop {
            let timer = self.timers.peek().map(|Reverse((at, _))| *at);
            let ends = [
                Some(self.next_arrival),
                self.server.next_end(),
                timer,
                self.limiter.next_expiry(),
                Some(self.second_ends()),
            ];
            let next = ends.into_iter().flatten().min().unwrap_or(end).max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            if ends[4] == Some(next) {
                self.close_second();
            } else if ends[1] == Some(next) {
                self.complete();
            } else if timer == Some(next) {
                self.fire();
            } else if ends[0] == Some(next) {
                self.arrive();
            }
            self.admit_waiting();
        }
    }

    fn second_ends(&self) -> Timestamp {
        Timestamp::from_secs(self.seconds.len() as u64 + 1)
    }

    /// A user's request.
    fn arrive(&mut self) {
        self.next_arrival = self.now + self.gap();
        let mut draw = self.classes.below(self.scenario.mix.iter().sum());
        let mut class = 0;
        while class + 1 < CLASSES.len() && draw >= self.scenario.mix[class] {
            draw -= self.scenario.mix[class];
            class += 1;
        }
        self.second.requests[class] += 1;
        self.send(class, self.scenario.retries);
    }

    fn send(&mut self, class: usize, left: u32) {
        self.second.attempts += 1;
        let attempt = Attempt { class, sent: self.now, admitted: self.now, left, is_awaited: true };
        let number = self.free.pop().unwrap_or(self.attempts.len());
        match self.attempts.get_mut(number) {
            Some(slot) => *slot = attempt,
            None => self.attempts.push(attempt),
        }
        match self.limiter.arrive(self.now, number, class) {
            Arrival::Admitted => self.admitted(number),
            Arrival::Queued(displaced) => displaced.into_iter().for_each(|other| self.shed(other)),
            Arrival::Shed => self.shed(number),
        }
    }

    fn admitted(&mut self, number: usize) {
        let attempt = &mut self.attempts[number];
        attempt.admitted = self.now;
        if self.scenario.retries > 0 {
            let gives_up = (attempt.sent + self.scenario.deadline).max(self.now);
            self.timers.push(Reverse((gives_up, Timer::GivesUp(number))));
        }
        let work = self.work.work(self.scenario.service, self.scenario.times);
        let slowed = Span::from_micros(work.as_micros() * self.phase.slowness / 100);
        self.server.accept(self.now, number, slowed);
    }

    fn shed(&mut self, number: usize) {
        self.second.shed[self.attempts[number].class] += 1;
        self.fail(number);
        self.free.push(number);
    }

    /// The client got no answer: it retries or gives up.
    fn fail(&mut self, number: usize) {
        let Attempt { class, left, .. } = self.attempts[number];
        self.attempts[number].is_awaited = false;
        if left > 0 {
            let pause = Span::from_micros(self.pauses.below(RETRY_PAUSE.as_micros()));
            self.timers.push(Reverse((self.now + pause, Timer::Retries { class, left: left - 1 })));
        }
    }

    fn fire(&mut self) {
        match self.timers.pop() {
            Some(Reverse((_, Timer::Retries { class, left }))) => self.send(class, left),
            Some(Reverse((at, Timer::GivesUp(number)))) => {
                // The index may have been reused since.
                let attempt = self.attempts[number];
                if attempt.is_awaited && attempt.sent + self.scenario.deadline <= at {
                    self.fail(number);
                }
            }
            None => {}
        }
    }

    /// The server does not notice that clients give up, so it completes every request.
    fn complete(&mut self) {
        let Some(number) = self.server.end(self.now) else { return };
        let attempt = self.attempts[number];
        let latency = self.now.since(attempt.sent);
        self.latencies.push(latency);
        self.limiter.complete(self.now, self.now.since(attempt.admitted));
        if attempt.is_awaited && latency <= self.scenario.deadline {
            self.second.served[attempt.class] += 1;
        } else if attempt.is_awaited {
            self.fail(number);
        }
        self.attempts[number].is_awaited = false;
        self.free.push(number);
    }

    fn admit_waiting(&mut self) {
        while let Some((number, is_admitted)) = self.limiter.next_waiter(self.now) {
            if is_admitted { self.admitted(number) } else { self.shed(number) }
        }
    }

    fn close_second(&mut self) {
        let mut second = std::mem::take(&mut self.second);
        second.in_flight = self.limiter.in_flight();
        second.limit = self.limiter.limit();
        self.latencies.sort_unstable();
        let quantile = |percent: usize| {
            let last = self.latencies.len().saturating_sub(1);
            self.latencies.get(last * percent / 100).copied().unwrap_or_default()
        };
        (second.p50, second.p99) = (quantile(50), quantile(99));
        self.latencies.clear();
        self.seconds.push(second);
    }
}
