//! E10 to E12: other times of service, slow readers, two services behind one gateway.

use super::overload::{SLOW_DEADLINE_MS, slow_pool};
use super::{Runs, rounded};
use crate::overload::backend::{Inside, Setup};
use crate::overload::cell::{Pair, Plan};
use crate::overload::contender::Contender;
use crate::overload::spec::Phase;
use crate::overload::work::Kind;

/// Mean work in microseconds, workers, and seconds that do not count and that do. A thread cannot serve the
/// 32,000 requests per second of 16 workers that take 0.5 ms.
const SPEEDS: [(u64, usize, u32, u32); 4] =
    [(500, 2, 5, 15), (100_000, 16, 20, 60), (1_000_000, 16, 60, 240), (4_000_000, 16, 240, 600)];

/// A response that does not fit into the buffers of a connection.
const LARGE_BODY: usize = 64 * 1_024;

impl Runs {
    /// Twice the peak with other times of service, all at the same time.
    pub(super) fn e10(&mut self) {
        let mut plans = Vec::new();
        for (mean_us, workers, settle, count) in SPEEDS {
            let setup = Setup { mean_us, workers, ..Setup::of(Kind::Pool) };
            let Some(peak) = self.peak(&setup) else { continue };
            let (settle, count) = (self.effort.seconds(settle), self.effort.seconds(count));
            let phases = vec![Phase::new(rounded(peak * 2.0), settle + count)];
            let name = format!("E10-{mean_us}us");
            let plan = Plan::new(&name, Contender::Tidegate, &setup, phases);
            let plan = plan.settle(settle as usize);
            plans.push(plan.load(|load| load.deadline_ms = (mean_us / 100).max(100)));
        }
        self.together(&plans);
    }

    /// A fifth of the clients takes a second to read the response.
    pub(super) fn e11(&mut self) {
        let Some(peak) = self.peak(&slow_pool()) else { return };
        let setup = Setup { body: LARGE_BODY, ..slow_pool() };
        let seconds = self.effort.seconds(40);
        for (name, hold, slow_readers) in [
            ("none", "body", 0),
            ("body", "body", 20),
            ("none-head", "head", 0),
            ("head", "head", 20),
        ] {
            let protect = format!("{{name: api, hold: {hold}}}");
            let setup = setup.clone().with(Inside::Tidegate(protect));
            let phases = vec![Phase::new(rounded(peak * 1.2), seconds)];
            let plan = Plan::new(&format!("E11-{name}"), Contender::Tidegate, &setup, phases);
            let settle = self.effort.seconds(15) as usize;
            self.cell(&plan.settle(settle).load(|load| {
                load.slow_readers = slow_readers;
                load.deadline_ms = SLOW_DEADLINE_MS;
            }));
        }
    }

    /// Two services behind one gateway, of which one is ten times as slow as usual: with a limiter for each,
    /// and with one for both.
    pub(super) fn e12(&mut self) {
        let setup = Setup::of(Kind::Pool);
        let Some(peak) = self.peak(&setup) else { return };
        for (name, pair) in [("each", Pair::Each), ("both", Pair::Both)] {
            let rate = rounded(peak * 0.8);
            let phases = vec![
                Phase::new(rate, self.effort.seconds(10)),
                Phase::new(rate, self.effort.seconds(30)).with("/set/slowness/1000"),
            ];
            let plan = Plan::new(&format!("E12-{name}"), Contender::Gateway, &setup, phases);
            // Half of the requests go to each: the first two classes to one, the others to the other.
            self.cell(&Plan { pair: Some(pair), ..plan }.load(|load| load.mix = [25, 25, 25, 25]));
        }
    }
}
