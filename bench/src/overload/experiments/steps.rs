//! E5 to E9: the load or the backend changes.

use super::overload::{SLOW_DEADLINE_MS, slow_pool};
use super::{Runs, rounded};
use crate::overload::backend::Setup;
use crate::overload::cell::Plan;
use crate::overload::contender::Contender;
use crate::overload::spec::{Phase, Sender};
use crate::overload::work::Kind;

impl Runs {
    /// Half of the workers fail, and return.
    pub(super) fn e5(&mut self) {
        let setup = Setup::of(Kind::Pool);
        let Some(peak) = self.peak(&setup) else { return };
        let (rate, seconds) = (rounded(peak * 1.2), self.effort.seconds(20));
        let phases = vec![
            Phase::new(rate, seconds),
            Phase::new(rate, seconds).with("/set/workers/8"),
            Phase::new(rate, seconds).with("/set/workers/16"),
        ];
        self.cell(&Plan::new("E5-tidegate", Contender::Tidegate, &setup, phases));
    }

    /// Requests take three times as long for a minute.
    pub(super) fn e6(&mut self) {
        let setup = Setup::of(Kind::Pool);
        let Some(peak) = self.peak(&setup) else { return };
        let rate = rounded(peak * 0.8);
        let phases = vec![
            Phase::new(rate, self.effort.seconds(20)),
            Phase::new(rate, self.effort.seconds(60)).with("/set/slowness/300"),
            Phase::new(rate, self.effort.seconds(30)).with("/set/slowness/100"),
        ];
        self.cell(&Plan::new("E6-tidegate", Contender::Tidegate, &setup, phases));
    }

    /// Half a minute at ten times the peak, with three retries of each client.
    pub(super) fn e7(&mut self) {
        for contender in [Contender::None, Contender::Tower, Contender::Tidegate] {
            if let Some(plan) = self.storm("E7", contender) {
                self.cell(&plan.load(|load| load.retries = 3));
            }
        }
    }

    /// The same with the client layers of this project.
    pub(super) fn e8(&mut self) {
        if let Some(plan) = self.storm("E8", Contender::Tidegate) {
            self.cell(&plan.load(|load| load.sender = Sender::Client));
        }
    }

    fn storm(&mut self, name: &str, contender: Contender) -> Option<Plan> {
        let setup = slow_pool();
        let peak = self.peak(&setup)?;
        let phases = vec![
            Phase::new(rounded(peak * 0.8), self.effort.seconds(10)),
            Phase::new(rounded(peak * 10.0), self.effort.seconds(30)),
            Phase::new(rounded(peak * 0.8), self.effort.seconds(70)),
        ];
        let name = format!("{name}-{}", contender.name());
        let plan = Plan::new(&name, contender, &setup, phases);
        Some(plan.load(|load| load.deadline_ms = SLOW_DEADLINE_MS))
    }

    /// Three times the peak after a minute without requests.
    pub(super) fn e9(&mut self) {
        let setup = Setup::of(Kind::Pool);
        let Some(peak) = self.peak(&setup) else { return };
        let phases = vec![
            Phase::new(rounded(peak * 0.5), self.effort.seconds(10)),
            Phase::new(0.0, self.effort.seconds(60)),
            Phase::new(rounded(peak * 3.0), self.effort.seconds(10)),
        ];
        self.cell(&Plan::new("E9-tidegate", Contender::Tidegate, &setup, phases));
    }
}
