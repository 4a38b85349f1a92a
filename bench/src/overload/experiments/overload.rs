//! E1 to E4: steady overload, beside other limiters.

use super::{Effort, Runs, rounded};
use crate::overload::backend::Setup;
use crate::overload::cell::Plan;
use crate::overload::contender::Contender;
use crate::overload::spec::Phase;
use crate::overload::work::{Kind, Times};

impl Runs {
    /// A backend at 2 and 10 times its peak.
    pub(super) fn e1(&mut self, kind: Kind) {
        let setup = Setup::of(kind);
        if self.store.quick {
            // Contenders that need no other program.
            for contender in [Contender::Tower, Contender::Tidegate, Contender::Gateway] {
                self.loaded("E1", contender, &setup, 2.0);
            }
            return;
        }
        self.loaded("E1", Contender::None, &setup, 0.3);
        let others: &[Contender] = match kind {
            Kind::Pool => &[Contender::Fixed, Contender::Aimd, Contender::Gradient2],
            Kind::Thrashing => &[Contender::BareGateway],
            Kind::Cpu | Kind::Connections => &[],
        };
        for contender in Contender::PEERS.iter().chain(others) {
            if contender.is_foreign() && kind != Kind::Pool {
                continue;
            }
            for times in [2.0, 10.0] {
                self.loaded("E1", *contender, &setup, times);
            }
        }
        if kind == Kind::Pool {
            for times in [Times::Lognormal, Times::Bimodal] {
                let setup = Setup { times, ..Setup::of(kind) };
                let name = format!("E1-{times:?}");
                self.loaded(&name, Contender::None, &setup, 0.3);
                for load in [2.0, 10.0] {
                    self.loaded(&name, Contender::Tidegate, &setup, load);
                }
            }
        }
    }

    /// Ten minutes below the peak.
    pub(super) fn e2(&mut self) {
        let setup = Setup::of(Kind::Pool);
        let Some(peak) = self.peak(&setup) else { return };
        let seconds = self.effort.seconds(600);
        let phases = vec![Phase::new(rounded(peak * 0.8), seconds)];
        let plan = Plan::new("E2-tidegate", Contender::Tidegate, &setup, phases);
        self.cell(&plan);
    }

    /// An hour at 1.2 times the peak of a slow backend, all contenders at the same time.
    pub(super) fn e3(&mut self) {
        let setup = slow_pool();
        let mut plans = Vec::new();
        for contender in [Contender::Tidegate, Contender::Netflix, Contender::Envoy] {
            let Some(peak) = self.peak(&setup) else { continue };
            let phases = vec![Phase::new(rounded(peak * 1.2), self.effort.hour)];
            let name = format!("E3-{}", contender.name());
            let plan = Plan::new(&name, contender, &setup, phases);
            plans.push(plan.load(|load| load.deadline_ms = SLOW_DEADLINE_MS));
        }
        self.together(&plans);
    }

    /// Four classes.
    pub(super) fn e4(&mut self) {
        let setup = Setup::of(Kind::Pool);
        for times in [1.2, 2.0, 2.5, 4.0, 8.0] {
            for contender in Contender::PEERS {
                self.loaded("E4", contender, &setup, times);
            }
        }
        // With the utilisation shedder, whose levels take a minute to settle.
        let Some(peak) = self.peak(&setup) else { return };
        let setup = setup.with(crate::overload::backend::Inside::Tidegate(SHEDDER.to_owned()));
        let Effort { count, .. } = self.effort;
        let settle = self.effort.seconds(75);
        let phases = vec![Phase::new(rounded(peak * 4.0), settle + count)];
        let plan = Plan::new("E4-P-4x-utilisation", Contender::Tidegate, &setup, phases);
        self.cell(&plan.settle(settle as usize).with_classes(true));
    }
}

const SHEDDER: &str = "{name: api, utilisation: {busy: 90%, calm: 75%}}";

/// Ten times the mean work, as in the other experiments.
pub(super) const SLOW_DEADLINE_MS: u64 = 500;

/// P with a fifth of the speed.
pub(super) fn slow_pool() -> Setup {
    Setup { mean_us: 50_000, ..Setup::of(Kind::Pool) }
}
