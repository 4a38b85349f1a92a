//! The load generator: one thread that sends every request when it is due, regardless of earlier
//! ones. A latency counts from that instant, so a generator that falls behind cannot hide a delay.
//!
//! Connections are bounded. A client that has given up keeps its connection until the response
//! arrives; a request without a free connection fails.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::connection::{Connection, Read};
use super::spec::{CLASSES, Phase, Second, Spec};
use super::work::Draws;
use crate::Failure;

/// The first argument of the process.
pub const COMMAND: &str = "overload-load";

/// The first line of output, when connections are open.
pub const BEGINS: &str = "begins";

/// Connections of a generator.
pub const CONNECTIONS: usize = 1_000;
/// The most connections to a backend.
pub const MOST_CONNECTIONS: usize = 2_000;

/// Time between two connections that are opened at the start.
const BETWEEN_CONNECTIONS: Duration = Duration::from_micros(100);

/// The longest pause of a client before it tries again, in nanoseconds.
const RETRY_PAUSE: f64 = 40e6;
/// How long the generator waits for responses after the last request.
const GRACE: u64 = 2 * SECOND;
const SECOND: u64 = 1_000_000_000;
const TIMER: u64 = u64::MAX;

/// Runs the process: reads a [`Spec`], and writes the seconds.
pub fn generate(arguments: &[String]) -> Result<(), Failure> {
    let [spec] = arguments else { return Err("a load is needed".into()) };
    let spec: Spec = serde_json::from_str(spec)?;
    let generator = Generator::new(&spec)?;
    println!("{BEGINS}");
    let seconds = generator.begin().run()?;
    serde_json::to_writer(std::io::stdout(), &seconds)?;
    Ok(std::io::stdout().flush()?)
}

/// An attempt without a response yet.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    class: usize,
    /// When it was due, in nanoseconds since the start.
    due: u64,
    /// The second in which the first attempt of the request was due.
    second: usize,
    left: u32,
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Retry {
    at: u64,
    class: usize,
    second: usize,
    left: u32,
}

struct Client {
    connection: Connection,
    attempt: Option<Attempt>,
    /// Distinguishes the attempts of a connection.
    number: u64,
    /// Set while a slow reader does not read.
    is_paused: bool,
}

struct Generator<'a> {
    spec: &'a Spec,
    start: Instant,
    epoll: rustix::fd::OwnedFd,
    timer: rustix::fd::OwnedFd,
    clients: Vec<Client>,
    /// Quick and slow readers.
    free: [Vec<usize>; 2],
    /// Attempts by when their client gives up; all have the same deadline.
    deadlines: VecDeque<(u64, usize, u64)>,
    retries: BinaryHeap<Reverse<Retry>>,
    /// Slow readers, by when they read on.
    paused: VecDeque<(u64, usize)>,
    draws: Draws,
    seconds: Vec<Second>,
    latencies: Vec<Vec<u32>>,
}

impl<'a> Generator<'a> {
    fn new(spec: &'a Spec) -> Result<Self, Failure> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        let seconds = spec.seconds() as usize;
        let mut generator = Self {
            spec,
            start: Instant::now(),
            epoll,
            timer,
            clients: Vec::with_capacity(spec.connections),
            free: [Vec::new(), Vec::new()],
            deadlines: VecDeque::new(),
            retries: BinaryHeap::new(),
            paused: VecDeque::new(),
            draws: Draws::new(spec.seed),
            seconds: vec![Second::default(); seconds],
            latencies: vec![Vec::new(); seconds],
        };
        for number in 0..spec.connections {
            let is_slow = number * 100 < spec.connections * spec.slow_readers as usize;
            let connection = Connection::open(spec.address, is_slow)?;
            generator.watch(number, &connection)?;
            generator.free[usize::from(is_slow)].push(number);
            // Other generators of the same priority run meanwhile.
            std::thread::sleep(BETWEEN_CONNECTIONS);
            generator.clients.push(Client {
                connection,
                attempt: None,
                number: 0,
                is_paused: false,
            });
        }
        Ok(generator)
    }

    /// The schedule begins now.
    fn begin(self) -> Self {
        Self { start: Instant::now(), ..self }
    }

    fn watch(&self, number: usize, connection: &Connection) -> Result<(), Failure> {
        let data = epoll::EventData::new_u64(number as u64);
        let mut flags = epoll::EventFlags::IN;
        // The unread bytes of a slow reader must not wake the loop repeatedly.
        flags.set(epoll::EventFlags::ET, connection.is_slow());
        Ok(epoll::add(&self.epoll, connection.socket(), data, flags)?)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn run(mut self) -> Result<Vec<Second>, Failure> {
        let end = self.seconds.len() as u64 * SECOND;
        let mut next = self.first_arrival();
        let mut events = Vec::with_capacity(256);
        let mut phases = self.spec.phases.iter().scan(0, |begin, phase| {
            let own = *begin;
            *begin += u64::from(phase.seconds) * SECOND;
            Some((own, phase))
        });
        let mut phase = phases.next();
        loop {
            if let Some((begin, current)) = phase
                && begin <= self.now()
            {
                self.control(current);
                phase = phases.next();
            }
            next = self.send_due(next, end);
            self.expire();
            let now = self.now();
            if now > end + GRACE || now > end && self.is_idle() {
                break;
            }
            self.arm(next.min(end))?;
            events.clear();
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in &events {
                match event.data.u64() {
                    TIMER => {
                        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
                    }
                    number => self.receive(number as usize)?,
                }
            }
        }
        for (second, latencies) in self.seconds.iter_mut().zip(&mut self.latencies) {
            latencies.sort_unstable();
            let last = latencies.len().saturating_sub(1);
            let quantile = |percent| latencies.get(last * percent / 100).copied();
            second.p50_us = quantile(50).unwrap_or_default();
            second.p99_us = quantile(99).unwrap_or_default();
        }
        Ok(self.seconds)
    }

    /// Sends the phase's control request to the backend.
    fn control(&self, phase: &Phase) {
        if let (Some(backend), Some(path)) = (self.spec.backend, phase.control.clone()) {
            // On a separate thread, so that the load continues.
            std::thread::spawn(move || tidegate_tests::http::get(backend, &path, ""));
        }
    }

    fn is_idle(&self) -> bool {
        self.retries.is_empty() && self.clients.iter().all(|client| client.attempt.is_none())
    }

    fn first_arrival(&mut self) -> u64 {
        for _ in 0..self.spec.closed.unwrap_or(0) {
            self.request(0);
        }
        self.after(0)
    }

    /// When the next request is due after `at`; with no rate, at the start of the next phase.
    fn after(&self, at: u64) -> u64 {
        if self.spec.closed.is_some() {
            return u64::MAX;
        }
        let mut start = 0;
        let mut from = at;
        for phase in &self.spec.phases {
            let end = start + u64::from(phase.seconds) * SECOND;
            if from < end {
                let gap = self.draws.exponential() * SECOND as f64 / phase.rate.max(1e-6);
                let next = from.saturating_add(gap as u64);
                if next < end {
                    return next;
                }
                // Without memory: the gap of the next phase begins with it.
                from = end;
            }
            start = end;
        }
        u64::MAX
    }

    /// Sends all requests that are due, and returns when the next one is due.
    fn send_due(&mut self, mut next: u64, end: u64) -> u64 {
        while next < end && next <= self.now() {
            self.request(next);
            next = self.after(next);
        }
        while let Some(&Reverse(retry)) = self.retries.peek()
            && retry.at <= self.now()
        {
            self.retries.pop();
            self.send(retry.at, retry.class, retry.second, retry.left);
        }
        next
    }

    /// A request of a user.
    fn request(&mut self, due: u64) {
        let mut draw = (self.draws.uniform() * 100.0) as u32;
        let mut class = 0;
        while class + 1 < CLASSES.len() && draw >= self.spec.mix[class] {
            draw -= self.spec.mix[class];
            class += 1;
        }
        let second = (due / SECOND) as usize;
        let late = u32::try_from(self.now().saturating_sub(due) / 1_000).unwrap_or(u32::MAX);
        if let Some(counts) = self.seconds.get_mut(second) {
            counts.requests[class] += 1;
            counts.lateness_us = counts.lateness_us.max(late);
        }
        self.send(due, class, second, self.spec.retries);
    }

    fn send(&mut self, due: u64, class: usize, second: usize, left: u32) {
        self.count(second, |second| second.attempts += 1);
        let attempt = Attempt { class, due, second, left, is_awaited: true };
        let is_slow = self.spec.slow_readers > 0
            && self.draws.uniform() * 100.0 < f64::from(self.spec.slow_readers);
        let Some(number) = self.free[usize::from(is_slow)].pop() else {
            self.count(second, |second| second.broken += 1);
            return self.fail(attempt, due);
        };
        let client = &mut self.clients[number];
        client.number += 1;
        client.attempt = Some(attempt);
        let sent = client.connection.send(class);
        let gives_up = due + self.spec.deadline_ms * 1_000_000;
        self.deadlines.push_back((gives_up, number, client.number));
        if sent.is_err() {
            self.broken(number);
        }
    }

    fn count(&mut self, second: usize, change: impl FnOnce(&mut Second)) {
        if let Some(second) = self.seconds.get_mut(second) {
            change(second);
        }
    }

    /// The client has no answer: it tries again or gives up.
    fn fail(&mut self, attempt: Attempt, now: u64) {
        if attempt.left > 0 {
            let at = now + (self.draws.uniform() * RETRY_PAUSE) as u64;
            let Attempt { class, second, left, .. } = attempt;
            self.retries.push(Reverse(Retry { at, class, second, left: left - 1 }));
        }
    }

    /// Gives up on the attempts whose deadline is over, and lets slow readers read on.
    fn expire(&mut self) {
        let now = self.now();
        while let Some(&(at, number, attempt_number)) = self.deadlines.front()
            && at <= now
        {
            self.deadlines.pop_front();
            let client = &mut self.clients[number];
            if client.number == attempt_number
                && let Some(attempt) = &mut client.attempt
                && attempt.is_awaited
                && self.spec.closed.is_none()
            {
                attempt.is_awaited = false;
                let attempt = *attempt;
                self.fail(attempt, now);
            }
        }
        while let Some(&(at, number)) = self.paused.front()
            && at <= now
        {
            self.paused.pop_front();
            self.clients[number].is_paused = false;
            if self.receive(number).is_err() {
                self.broken(number);
            }
        }
    }

    /// Wakes the loop when something is due.
    fn arm(&self, arrival: u64) -> Result<(), Failure> {
        let deadline = self.deadlines.front().map(|(at, ..)| *at);
        let retry = self.retries.peek().map(|Reverse(retry)| retry.at);
        let paused = self.paused.front().map(|(at, _)| *at);
        let times = [Some(arrival), deadline, retry, paused];
        let next = times.into_iter().flatten().min().unwrap_or(arrival);
        // At least every 10 ms, for the end of the run.
        let left = next.saturating_sub(self.now()).clamp(1_000, 10_000_000);
        let it_value = Timespec { tv_sec: 0, tv_nsec: left as i64 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let new = Itimerspec { it_interval, it_value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &new)?;
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), Failure> {
        if self.clients[number].is_paused {
            return Ok(());
        }
        let was_awaited = self.clients[number].attempt.is_some();
        match self.clients[number].connection.read() {
            Read::Part => {}
            Read::Later(pause) => {
                let at = self.now() + u64::try_from(pause.as_nanos()).unwrap_or(0);
                self.paused.push_back((at, number));
                self.clients[number].is_paused = true;
            }
            Read::Whole(status) if was_awaited => self.answered(number, status),
            Read::Whole(_) | Read::Broken => {
                self.broken(number);
                let is_slow = self.clients[number].connection.is_slow();
                let connection = Connection::open(self.spec.address, is_slow)?;
                self.watch(number, &connection)?;
                self.clients[number].connection = connection;
            }
        }
        Ok(())
    }

    /// The connection broke: the attempt has failed.
    fn broken(&mut self, number: usize) {
        let now = self.now();
        if let Some(attempt) = self.clients[number].attempt.take() {
            self.count(attempt.second, |second| second.broken += 1);
            self.release(number);
            if attempt.is_awaited {
                self.fail(attempt, now);
            }
        }
    }

    fn release(&mut self, number: usize) {
        let is_slow = self.clients[number].connection.is_slow();
        self.free[usize::from(is_slow)].push(number);
    }

    fn answered(&mut self, number: usize, status: u16) {
        let now = self.now();
        let Some(attempt) = self.clients[number].attempt.take() else { return };
        self.release(number);
        let latency = now.saturating_sub(attempt.due);
        let is_in_time = self.spec.closed.is_some()
            || attempt.is_awaited && latency <= self.spec.deadline_ms * 1_000_000;
        let (class, is_served) = (attempt.class, status == 200);
        let ended = ((now / SECOND) as usize).min(self.seconds.len().saturating_sub(1));
        if is_served && let Some(latencies) = self.latencies.get_mut(ended) {
            latencies.push(u32::try_from(latency / 1_000).unwrap_or(u32::MAX));
        }
        // A closed loop has no schedule: it counts when the answer comes.
        let second = if self.spec.closed.is_some() { ended } else { attempt.second };
        self.count(second, |second| match status {
            200 if is_in_time => second.served[class] += 1,
            200 => {}
            503 => second.shed[class] += 1,
            _ => second.broken += 1,
        });
        if !(is_served && is_in_time) && attempt.is_awaited {
            self.fail(attempt, now);
        }
        if self.spec.closed.is_some() && now < self.seconds.len() as u64 * SECOND {
            self.request(now);
        }
    }
}

/// How long a slow reader takes for one response.
pub const SLOW_READ: Duration = Duration::from_secs(1);
