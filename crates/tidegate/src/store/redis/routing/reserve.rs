//! Charges of one request that one script call cannot decide: reserved route by route, and returned
//! if a later one is denied.
//!
//! # Promise
//! Never admits a request that a single call would deny. A return frees only units that are still
//! owed: none that a bucket has refilled since, none in a window that has ended, none in a log that
//! has changed since. A reset in between goes unnoticed: as with any return, it may then free units
//! that were taken after the reset. Other requests may be denied while a denied request holds
//! reservations, and because of reservations that were not returned.

use tidegate_core::{Decision, Op, Timestamp};

use crate::store::redis::routing::route::Route;
use crate::store::redis::wire::call::{Answered, Decided, Item};
use crate::store::redis::wire::script_args::{ScriptArgs, Work};
use crate::store::redis::{RedisStore, StoreError};
use crate::store::{Charge, Misconfigured, Reserving};

/// Units taken for a request that is not decided yet. Dropping it returns them.
struct Reserved<'a> {
    store: &'a RedisStore,
    now: Timestamp,
    taken: Vec<(Route, Item)>,
}

impl Reserved<'_> {
    /// Records how to return the units that these charges took.
    fn add(&mut self, route: Route, items: &[Item], decisions: &[Decision], taken_at: Timestamp) {
        for (item, decision) in items.iter().zip(decisions) {
            let ScriptArgs { work, reserving, .. } = item.script_args;
            let (work, reserving) = match (work, decision.lease, reserving) {
                (_, Some(lease), _) => (Work::Operate(Op::Release(lease)), None),
                // Returning the units closes the reservation.
                (Work::Operate(Op::Take(units @ 1..)), None, Some(Reserving::Open(id))) => {
                    (Work::Operate(Op::Return(units)), Some(Reserving::Close(id)))
                }
                (Work::Operate(Op::Take(units @ 1..)), None, _) => {
                    (Work::Undo { units, taken_at }, None)
                }
                _ => continue,
            };
            let script_args = ScriptArgs { work, reserving, ..item.script_args };
            self.taken.push((route, Item { name: item.name.clone(), script_args }));
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for (route, item) in self.taken.drain(..) {
            self.store.routes.post(route, self.now, vec![item]);
        }
    }
}

impl RedisStore {
    /// Returns the units that a charge took at `taken_at`, as for a request whose later charge is
    /// denied. For tests: a request does not wait for the return.
    #[doc(hidden)]
    #[doc(hidden)]
    pub async fn undo(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        taken_at: Timestamp,
    ) -> Result<(), StoreError> {
        let Op::Take(units) = charge.op else { return Ok(()) };
        let item = self.item(charge);
        let script_args = ScriptArgs { work: Work::Undo { units, taken_at }, ..item.script_args };
        let item = Item { script_args, ..item };
        self.ask_decisions(now, self.routes.of(&item), vec![item]).await.map(drop)
    }

    /// Decides charges all or nothing.
    pub(in crate::store::redis) async fn decide_together(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
    ) -> Result<Vec<Decision>, StoreError> {
        let items: Vec<Item> = charges.iter().map(|charge| self.item(charge)).collect();
        let differs =
            |a: &Item, b: &Item| a.name == b.name && a.script_args.limit != b.script_args.limit;
        if items.iter().enumerate().any(|(i, a)| items[..i].iter().any(|b| differs(a, b))) {
            let why = "one request charges the same key under two different limits";
            return Err(StoreError::misconfigured(Misconfigured::Setting, why));
        }
        let routes: Vec<Route> = items.iter().map(|item| self.routes.of(item)).collect();
        match routes.iter().all(|route| *route == routes[0]) {
            true if items.is_empty() => Ok(Vec::new()),
            true => {
                let mut decided = self.ask_decisions(now, routes[0], items).await?;
                decided.report_denials(charges.iter());
                Ok(decided.decisions)
            }
            false => self.reserve(now, charges, &routes, &items).await,
        }
    }

    async fn reserve(
        &self,
        now: Timestamp,
        asked_for: &[Charge<'_>],
        routes: &[Route],
        items: &[Item],
    ) -> Result<Vec<Decision>, StoreError> {
        let mut order: Vec<Route> = routes.to_vec();
        order.sort_unstable();
        order.dedup();
        let mut reserved = Reserved { store: self, now, taken: Vec::new() };
        let mut decisions: Vec<Option<Decision>> = vec![None; items.len()];
        for (asked, route) in order.iter().enumerate() {
            let places = places(routes, *route);
            let charges: Vec<Item> = places.iter().map(|i| items[*i].clone()).collect();
            let mut decided = self.ask_decisions(now, *route, charges.clone()).await?;
            decided.report_denials(places.iter().map(|i| &asked_for[*i]));
            let Decided { decisions: answers, at: taken_at, .. } = decided;
            let allowed = answers.iter().all(Decision::is_allowed);
            places.iter().zip(&answers).for_each(|(i, answer)| decisions[*i] = Some(*answer));
            if !allowed {
                drop(reserved);
                let (before, after) = (&order[..asked], &order[asked + 1..]);
                let others = [before, after].concat();
                self.look(now, (routes, items), &others, &mut decisions).await;
                return Ok(or_untaken(decisions, items));
            }
            reserved.add(*route, &charges, &answers, taken_at);
        }
        reserved.taken.clear();
        Ok(or_untaken(decisions, items))
    }

    /// Reads the other limits of a denied request. The request stays denied; a limit without an
    /// answer keeps its earlier decision, or has none.
    async fn look(
        &self,
        now: Timestamp,
        (routes, items): (&[Route], &[Item]),
        others: &[Route],
        decisions: &mut [Option<Decision>],
    ) {
        let asked: Vec<_> = others
            .iter()
            .map(|route| {
                let places = places(routes, *route);
                let looks = places.iter().map(|i| look(&items[*i])).collect();
                (places, self.routes.submit(*route, now, looks))
            })
            .collect();
        for (places, answer) in asked {
            if let Ok(Ok(Answered::Decisions(decided))) = answer.await {
                places
                    .iter()
                    .zip(decided.decisions)
                    .for_each(|(i, answer)| decisions[*i] = Some(answer));
            }
        }
    }
}

fn places(routes: &[Route], route: Route) -> Vec<usize> {
    (0..routes.len()).filter(|i| routes[*i] == route).collect()
}

/// The same charge as a read.
fn look(item: &Item) -> Item {
    let work = match item.script_args.work {
        Work::Operate(Op::Take(units)) => Work::Operate(Op::Read(units)),
        other => other,
    };
    let script_args = ScriptArgs { work, reserving: None, ..item.script_args };
    Item { name: item.name.clone(), script_args }
}

/// All decisions. A limit without an answer gets a decision that only states that nothing was
/// taken.
fn or_untaken(decisions: Vec<Option<Decision>>, items: &[Item]) -> Vec<Decision> {
    use tidegate_core::{Algorithm, State};
    let unknown = |item: &Item| {
        item.script_args.limit.decide(&mut State::default(), Timestamp::EPOCH, Op::Read(0))
    };
    let each = decisions.into_iter().zip(items);
    each.map(|(decision, item)| decision.unwrap_or_else(|| unknown(item))).collect()
}
