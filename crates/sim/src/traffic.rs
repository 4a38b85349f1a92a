//! Traffic: shapes scaled to a limit.

use tidegate_core::{Span, Timestamp};

use crate::client::{Client, OnDenial};
use crate::seed::Seed;
use crate::setup::Setup;
use crate::shape::Shape;

/// Clients, and the time span to show. Windows start at multiples of the rate's period, so the first boundary is
/// one period in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The clients.
    pub clients: Vec<Client>,
    /// Where a chart begins.
    pub from: Timestamp,
    /// Where the chart ends, unless requests start later.
    pub until: Timestamp,
}

impl Setup {
    /// The traffic of `shape`, scaled to this setup's rate.
    pub fn traffic(&self, shape: Shape) -> Traffic {
        let scale = Scale { count: self.rate().count, period: self.rate().per.as_micros() };
        match shape {
            Shape::BoundaryBurst => scale.boundary_burst(),
            Shape::WindowDrip => scale.window_drip(),
            Shape::RetryStorm => scale.retry_storm(self.seed()),
            Shape::Steady => scale.steady(self.seed()),
            Shape::IdleThenBurst => scale.idle_then_burst(),
            Shape::BatchJob => scale.batch_job(),
            Shape::FlashSale => scale.flash_sale(self.seed()),
        }
    }
}

impl Traffic {
    /// Number of requests that the clients want to be served.
    pub fn demand(&self) -> u64 {
        self.clients.iter().map(|client| client.requests).sum()
    }

    fn new(clients: Vec<Client>, from: u64, until: u64) -> Self {
        let [from, until] = [from, until].map(Timestamp::from_micros);
        Self { clients, from, until }
    }
}

/// A rate's two numbers; all times are microseconds and fractions of the period.
#[derive(Clone, Copy)]
struct Scale {
    count: u64,
    period: u64,
}

impl Scale {
    /// A second before and after a boundary; less if the period is short.
    fn lead(self) -> u64 {
        (self.period / 10).min(1_000_000)
    }

    fn boundary_burst(self) -> Traffic {
        let (lead, spread) = (self.lead(), self.lead() / 5);
        let before = evenly(self.count, self.period - lead, spread);
        let after = evenly(self.count, self.period + lead - spread, spread);
        let clients = before.chain(after).map(Client::once).collect();
        Traffic::new(clients, self.period / 2, self.period * 5 / 2)
    }

    fn window_drip(self) -> Traffic {
        let spread = self.period / 600;
        let fill = evenly(self.count, self.period - spread, spread);
        let drip = evenly(2 * self.count, self.period, self.period);
        let clients = fill.chain(drip).map(Client::once).collect();
        Traffic::new(clients, self.period / 2, self.period * 5 / 2)
    }

    fn retry_storm(self, seed: Seed) -> Traffic {
        let (start, spread) = (self.period / 2, self.period / 60);
        let manners = [
            OnDenial::Hammer { pause: Span::from_micros(self.period / 300), tries: 20 },
            OnDenial::BackOff { first: Span::from_micros(self.period / 60), tries: 7 },
            OnDenial::Honour { tries: 10 },
        ];
        let clients = (0..narrow(3 * self.count)).zip(manners.into_iter().cycle());
        let clients = clients.map(|(who, on_denial)| {
            let at = Timestamp::from_micros(start + seed.below(spread, who, 0));
            Client { on_denial, ..Client::once(at) }
        });
        Traffic::new(clients.collect(), self.period / 4, self.period * 3)
    }

    /// Gaps are never shorter than the rate's own interval, so that even strict spacing admits all.
    fn steady(self, seed: Seed) -> Traffic {
        let length = self.period * 4;
        let requests = (self.count * 36 / 10).max(1);
        let jitter = length / requests / 10;
        let clients = evenly(requests, 0, length)
            .enumerate()
            .map(|(who, at)| Client::once(at + Span::from_micros(seed.below(jitter, who, 0))));
        Traffic::new(clients.collect(), 0, length)
    }

    fn idle_then_burst(self) -> Traffic {
        const HALF_AN_HOUR: u64 = 1_800 * 1_000_000;
        let active = self.period / 2;
        let awake = active + HALF_AN_HOUR.max(2 * self.period);
        // In the first half of a window, so that the chart shows the idle time and not a boundary.
        let burst = awake.next_multiple_of(self.period) + self.period / 4;
        let before = evenly(self.count.div_ceil(2), 0, active);
        let after = evenly(2 * self.count, burst, self.period / 30);
        let clients = before.chain(after).map(Client::once).collect();
        Traffic::new(clients, burst - self.period / 4, burst + self.period * 5 / 4)
    }

    /// Without a limit, the workers are four times as fast as the rate.
    fn batch_job(self) -> Traffic {
        let items = 3 * self.count;
        let workers = items.min(8);
        let start = self.period / 4;
        let pause = self.period * workers / (4 * self.count);
        let clients = (0..workers).map(|worker| Client {
            at: Timestamp::from_micros(start + pause * worker / workers),
            requests: items / workers + u64::from(worker < items % workers),
            pause: Span::from_micros(pause),
            on_denial: OnDenial::Honour { tries: u32::MAX },
        });
        Traffic::new(clients.collect(), 0, self.period * 3)
    }

    fn flash_sale(self, seed: Seed) -> Traffic {
        let usual = evenly((3 * self.count).div_ceil(2), 0, 3 * self.period);
        let (start, length) = (self.period * 5 / 4, self.period / 2);
        let rush = (0..narrow(10 * self.count)).map(|who| {
            // A squared random number: most requests come early.
            let once = seed.below(1 << 20, who, 0);
            let late = scaled(length, once * once, 1 << 40);
            Timestamp::from_micros(start + late)
        });
        let mut clients: Vec<Client> = usual.chain(rush).map(Client::once).collect();
        clients.sort_by_key(|client| client.at);
        Traffic::new(clients, 0, 3 * self.period)
    }
}

/// `requests` instants at equal distances, the first at `start`, all before `start + length`.
fn evenly(requests: u64, start: u64, length: u64) -> impl Iterator<Item = Timestamp> {
    (0..requests).map(move |i| Timestamp::from_micros(start + scaled(length, i, requests)))
}

/// `length * part / whole`, without overflow; `part` is at most `whole`.
fn scaled(length: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(length) * u128::from(part) / u128::from(whole);
    u64::try_from(product).unwrap_or(length)
}

/// A number of clients as an index, within the bound of the setup.
fn narrow(clients: u64) -> usize {
    usize::try_from(clients).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
