//! Charges of one request that one script call cannot decide: reserved route by route, and given
//! back if a later one is denied.
//!
//! # Promise
//! Never admits what a single call would deny. While a request that ends up denied holds its
//! reservations, others may be denied for them; a crash in between costs those units until they
//! refill.

use tidegate_core::{Decision, Op, Timestamp};
use tokio::time::timeout;

use super::call::Item;
use super::route::Route;
use super::tariff::{Tariff, Work};
use super::{RedisStore, StoreError};
use crate::store::Misconfigured;

/// Units taken for a request that is not decided yet. Dropping it gives them back.
struct Reserved<'a> {
    store: &'a RedisStore,
    now: Timestamp,
    taken: Vec<(Route, Item)>,
}

impl Reserved<'_> {
    /// Remembers how to give back what these charges took.
    fn add(&mut self, route: Route, items: &[Item], decisions: &[Decision]) {
        for (item, decision) in items.iter().zip(decisions) {
            let back = match (item.tariff.work, decision.lease) {
                (_, Some(lease)) => Op::Release(lease),
                (Work::Operate(Op::Take(units @ 1..)), None) => Op::Return(units),
                _ => continue,
            };
            let tariff = Tariff { work: Work::Operate(back), ..item.tariff };
            self.taken.push((route, Item { name: item.name.clone(), tariff }));
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for (route, item) in self.taken.drain(..) {
            // Nobody waits for the answer, but it must not look as if nobody cared for the charge.
            let answer = self.store.routes.submit(route, self.now, vec![item]);
            let deadline = self.store.config.connect_timeout;
            tokio::spawn(timeout(deadline, answer));
        }
    }
}

impl RedisStore {
    /// All charges or none.
    pub(super) async fn decide_together(
        &self,
        now: Timestamp,
        items: Vec<Item>,
    ) -> Result<Vec<Decision>, StoreError> {
        let differs = |a: &Item, b: &Item| a.name == b.name && a.tariff.limit != b.tariff.limit;
        if items.iter().enumerate().any(|(i, a)| items[..i].iter().any(|b| differs(a, b))) {
            let why = "one request charges one key by two sets of numbers";
            return Err(StoreError::misconfigured(Misconfigured::Setting, why));
        }
        let routes: Vec<Route> = items.iter().map(|item| self.routes.of(item)).collect();
        match routes.iter().all(|route| *route == routes[0]) {
            true if items.is_empty() => Ok(Vec::new()),
            true => self.ask_decisions(now, routes[0], items).await,
            false => {
                let reserving = self.reserve(now, &routes, &items);
                timeout(self.config.deadline, reserving).await.unwrap_or(Err(StoreError::Timeout))
            }
        }
    }

    async fn reserve(
        &self,
        now: Timestamp,
        routes: &[Route],
        items: &[Item],
    ) -> Result<Vec<Decision>, StoreError> {
        let mut order: Vec<Route> = routes.to_vec();
        order.sort_unstable();
        order.dedup();
        let mut reserved = Reserved { store: self, now, taken: Vec::new() };
        let mut decisions: Vec<Option<Decision>> = vec![None; items.len()];
        let mut denied = false;
        for route in order {
            let places: Vec<usize> = (0..items.len()).filter(|i| routes[*i] == route).collect();
            // Once one is denied, the others only say how they stand.
            let charges: Vec<Item> = places
                .iter()
                .map(|i| if denied { look(&items[*i]) } else { items[*i].clone() })
                .collect();
            let answers = self.ask_decisions(now, route, charges.clone()).await?;
            let allowed = answers.iter().all(Decision::is_allowed);
            if allowed && !denied {
                reserved.add(route, &charges, &answers);
            }
            denied |= !allowed;
            places.iter().zip(answers).for_each(|(i, answer)| decisions[*i] = Some(answer));
        }
        if denied {
            let taken: Vec<Route> = reserved.taken.iter().map(|(route, _)| *route).collect();
            drop(reserved);
            for (i, item) in items.iter().enumerate().filter(|(i, _)| taken.contains(&routes[*i])) {
                let stands = self.ask_decisions(now, routes[i], vec![look(item)]).await?;
                decisions[i] = stands.first().copied();
            }
        } else {
            reserved.taken.clear();
        }
        let decisions: Option<Vec<Decision>> = decisions.into_iter().collect();
        decisions.ok_or_else(|| StoreError::protocol("a charge without a decision"))
    }
}

/// The same charge, but nothing is taken.
fn look(item: &Item) -> Item {
    let work = match item.tariff.work {
        Work::Operate(Op::Take(units)) => Work::Operate(Op::Read(units)),
        other => other,
    };
    Item { name: item.name.clone(), tariff: Tariff { work, ..item.tariff } }
}
