//! Admission in front of the simulated server.

use std::collections::VecDeque;

use tidegate_core::adaptive::{Adaptive, Aimd, Estimator, Fixed, LimitRange, WindowStats};
use tidegate_core::shed::{
    Class, QueueTimeout, Selection, Shares, UtilisationLevels, UtilisationShedder,
};
use tidegate_core::window::{Due, Histogram, Window};
use tidegate_core::{Span, Timestamp};

use super::arrivals::Draws;
use super::contender::Contender;
use super::peers::{Gradient2, Vegas};
use super::scenario::{CLASSES, Scenario};

/// Decides which requests reach the server, as the concurrency limiter does: the estimator, the
/// window, the shares and the queue timeout are those of the library.
pub(super) struct Limiter {
    control: Control,
    in_flight: u32,
    /// Shares and queue of the library's limiters; the others have neither.
    shares: Option<Shares>,
    queues: [VecDeque<Waiter>; CLASSES.len()],
    timeout: QueueTimeout,
    /// Latency from which on a request counts as dropped.
    drops_after: Option<Span>,
    utilisation: Option<Utilisation>,
}

struct Utilisation {
    shedder: UtilisationShedder,
    read: Timestamp,
    /// Numbers requests for the shedder, because none has an identity.
    next: u64,
}

struct Waiter {
    request: usize,
    expires: Timestamp,
}

enum Control {
    Unlimited,
    Windowed(Box<Windowed>),
    Gradient2(Gradient2),
    Vegas(Vegas),
}

struct Windowed {
    estimator: Box<dyn Estimator>,
    window: Window,
    histogram: Histogram,
    stats: WindowStats,
    limit: u32,
}

/// The fate of a request on arrival.
pub(super) enum Arrival {
    Admitted,
    /// The request waits. If another request had to make room, it is shed.
    Queued(Option<usize>),
    Shed,
}

impl Limiter {
    pub(super) fn new(contender: Contender, scenario: &Scenario) -> Self {
        let seed = scenario.seed.0;
        let windowed =
            |estimator: Box<dyn Estimator>| Control::Windowed(Box::new(Windowed::new(estimator)));
        let workers = u32::try_from(scenario.server.parallel()).unwrap_or(u32::MAX);
        let range = LimitRange::default();
        let control = match contender {
            Contender::Unlimited => Control::Unlimited,
            Contender::Fixed => windowed(Box::new(Fixed::new(2 * workers))),
            Contender::Aimd => windowed(Box::new(Aimd::new(range))),
            Contender::Gradient2 => Control::Gradient2(Gradient2::new()),
            Contender::Vegas => Control::Vegas(Vegas::new(Draws::new(scenario.seed, 9))),
            Contender::Adaptive | Contender::Shedder => {
                windowed(Box::new(Adaptive::new(range, seed)))
            }
        };
        let is_ours = matches!(contender, Contender::Adaptive | Contender::Shedder);
        Self {
            control,
            in_flight: 0,
            shares: is_ours.then(Shares::default),
            queues: Default::default(),
            timeout: QueueTimeout::default(),
            drops_after: (contender == Contender::Aimd).then_some(scenario.deadline),
            utilisation: (contender == Contender::Shedder).then(Utilisation::new),
        }
    }

    pub(super) fn arrive(&mut self, now: Timestamp, request: usize, class: usize) -> Arrival {
        let (limit, in_flight) = (self.control.limit(), self.in_flight);
        if let Some(utilisation) = &mut self.utilisation {
            utilisation.read(now, u64::from(in_flight) * 1_000 / u64::from(limit.max(1)));
            if utilisation.sheds(class) {
                self.control.refused();
                return Arrival::Shed;
            }
        }
        let waits = self.queues[..=class].iter().any(|queue| !queue.is_empty());
        if !waits && self.take(class) {
            return Arrival::Admitted;
        }
        if self.shares.is_some()
            && let Some(displaced) = self.queue(now, request, class)
        {
            self.control.refused();
            return Arrival::Queued(displaced);
        }
        self.control.refused();
        Arrival::Shed
    }

    /// Joins the queue; `None` if there is no room.
    fn queue(&mut self, now: Timestamp, request: usize, class: usize) -> Option<Option<usize>> {
        let waiting: usize = self.queues.iter().map(VecDeque::len).sum();
        let expires = self.timeout.join(now, None)?;
        let mut displaced = None;
        if waiting >= self.control.limit() as usize {
            let below = self.queues[class + 1..].iter_mut().rev();
            displaced = Some(below.filter_map(VecDeque::pop_front).next()?.request);
        }
        self.queues[class].push_back(Waiter { request, expires });
        Some(displaced)
    }

    fn take(&mut self, class: usize) -> bool {
        let limit = self.control.limit();
        let threshold = match &self.shares {
            Some(shares) => shares.thresholds(limit)[class],
            None => limit,
        };
        let is_free = self.in_flight < threshold;
        if is_free {
            self.in_flight += 1;
            self.control.saw(self.in_flight);
        }
        is_free
    }

    /// Records that a request has ended.
    pub(super) fn complete(&mut self, now: Timestamp, latency: Span) {
        let in_flight = self.in_flight;
        self.in_flight -= 1;
        let is_dropped = self.drops_after.is_some_and(|most| latency > most);
        self.control.sample(now, latency, in_flight, is_dropped);
    }

    /// The next waiter to leave the queue: admitted, or shed after the queue timeout.
    pub(super) fn next_waiter(&mut self, now: Timestamp) -> Option<(usize, bool)> {
        let is_newest_first = self.timeout.is_overloaded(now);
        let class = self.queues.iter().position(|queue| !queue.is_empty());
        let Some(class) = class else {
            self.timeout.emptied();
            return None;
        };
        let late = |queue: &VecDeque<Waiter>| queue.front().is_some_and(|next| next.expires <= now);
        if let Some(queue) = self.queues.iter_mut().find(|queue| late(queue)) {
            return queue.pop_front().map(|waiter| (waiter.request, false));
        }
        if !self.take(class) {
            return None;
        }
        let queue = &mut self.queues[class];
        let waiter = if is_newest_first { queue.pop_back() } else { queue.pop_front() };
        waiter.map(|waiter| (waiter.request, true))
    }

    /// When the queue timeout of the next waiter ends.
    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|waiter| waiter.expires).min()
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The limit, ignoring probes; `None` without a limit.
    pub(super) fn limit(&self) -> Option<u32> {
        match &self.control {
            Control::Unlimited => None,
            Control::Windowed(windowed) => Some(windowed.estimator.limit()),
            Control::Gradient2(peer) => Some(peer.limit()),
            Control::Vegas(peer) => Some(peer.limit()),
        }
    }
}

impl Utilisation {
    /// How often utilisation is read.
    const INTERVAL: Span = Span::from_millis(10);

    fn new() -> Self {
        let shedder = UtilisationShedder::new(UtilisationLevels::default(), CLASSES.len());
        Self { shedder, read: Timestamp::EPOCH, next: 0 }
    }

    fn read(&mut self, now: Timestamp, thousandths: u64) {
        if now.since(self.read) >= Self::INTERVAL {
            self.read = now;
            self.shedder.observe(now, thousandths);
        }
    }

    fn sheds(&mut self, class: usize) -> bool {
        self.next += 1;
        let class = Class::new(u8::try_from(class).unwrap_or(u8::MAX));
        self.shedder.sheds(class, Selection::Number(self.next))
    }
}

impl Control {
    fn limit(&self) -> u32 {
        match self {
            Self::Unlimited => u32::MAX,
            Self::Windowed(windowed) => windowed.limit,
            Self::Gradient2(peer) => peer.limit(),
            Self::Vegas(peer) => peer.limit(),
        }
    }

    fn saw(&mut self, in_flight: u32) {
        if let Self::Windowed(windowed) = self {
            windowed.stats.peak = windowed.stats.peak.max(in_flight);
        }
    }

    fn refused(&mut self) {
        if let Self::Windowed(windowed) = self {
            windowed.stats.refused += 1;
        }
    }

    fn sample(&mut self, now: Timestamp, latency: Span, in_flight: u32, is_dropped: bool) {
        match self {
            Self::Unlimited => {}
            Self::Windowed(windowed) => windowed.sample(now, latency, in_flight, is_dropped),
            Self::Gradient2(peer) => peer.sample(now, latency, in_flight),
            Self::Vegas(peer) => peer.sample(latency, in_flight),
        }
    }
}

impl Windowed {
    fn new(estimator: Box<dyn Estimator>) -> Self {
        Self {
            limit: estimator.limit(),
            estimator,
            window: Window::open(Timestamp::EPOCH, None),
            histogram: Histogram::new(),
            stats: WindowStats::default(),
        }
    }

    fn sample(&mut self, now: Timestamp, latency: Span, in_flight: u32, is_dropped: bool) {
        if now >= self.window.counts_from() {
            if is_dropped {
                self.stats.dropped += 1;
            } else {
                self.histogram.record(latency);
                self.stats.samples += 1;
            }
        }
        if self.window.due(now, &self.histogram, self.stats.dropped) != Due::Now {
            return;
        }
        self.stats.median = self.histogram.median();
        let step = self.estimator.window(now, &self.stats);
        self.limit = step.probe.map_or(step.limit, |probe| probe.limit);
        self.window = Window::open(now, step.probe);
        self.histogram = Histogram::new();
        self.stats = WindowStats { peak: in_flight, ..WindowStats::default() };
    }
}
