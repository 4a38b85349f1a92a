//! The sequential model: one state per key, one decision after the other.

use std::collections::HashMap;

use tidegate::store::{Charge, RESERVATION_TTL, Reserving};
use tidegate::{Algorithm, Decision, Limit, Op, Outcome, State, Timestamp};

/// The behaviour of a correct store, in its simplest form.
#[derive(Debug, Default)]
pub struct Model {
    states: HashMap<(String, Vec<u8>), State>,
    /// For each open reservation, until when its units are owed and when it expires.
    open: HashMap<(String, Vec<u8>, u64), (Timestamp, Timestamp)>,
}

impl Model {
    /// Decides the charges of one request: takes and reads all or nothing, all others separately.
    pub fn decide(&mut self, now: Timestamp, charges: &[Charge<'_>]) -> Vec<Decision> {
        let asks = |charge: &Charge<'_>| matches!(charge.op, Op::Take(_) | Op::Read(_));
        if charges.len() == 1 || !charges.iter().all(asks) {
            return charges.iter().map(|charge| self.alone(now, charge)).collect();
        }
        let before = self.before(charges);
        let tried: Vec<Decision> =
            charges.iter().map(|charge| self.charge(now, charge, charge.op)).collect();
        if tried.iter().all(Decision::is_allowed) {
            charges.iter().zip(&tried).for_each(|(charge, it)| self.open(now, charge, it));
            return tried;
        }
        // No limit is charged: each reports its state, and a denying limit keeps the state of its
        // denial.
        before.into_iter().for_each(|(key, state)| {
            self.states.insert(key, state);
        });
        let mut decisions = Vec::new();
        for (charge, tried) in charges.iter().zip(tried) {
            let (Op::Take(cost) | Op::Read(cost)) = charge.op else { unreachable!("checked") };
            let stands = self.charge(now, charge, Op::Read(cost));
            decisions.push(match (tried.is_allowed(), stands.is_allowed()) {
                (true, _) => stands,
                (false, false) => self.charge(now, charge, charge.op),
                // Denied only because of an earlier charge of the same request.
                (false, true) => tried,
            });
        }
        decisions
    }

    fn alone(&mut self, now: Timestamp, charge: &Charge<'_>) -> Decision {
        let Some(Reserving::Close(id)) = charge.reserving else {
            let decision = self.charge(now, charge, charge.op);
            self.open(now, charge, &decision);
            return decision;
        };
        let (scope, text) = name(charge);
        let open = self.open.remove(&(scope, text, id.number()));
        let Some((until, _)) = open.filter(|(_, expires)| *expires > now) else {
            let outcome = Outcome::Deny { retry_after: None };
            return Decision { outcome, ..self.charge(now, charge, Op::Read(0)) };
        };
        let op = match charge.op {
            Op::Return(units) => Op::ReturnOwed { units, until },
            op => op,
        };
        self.charge(now, charge, op)
    }

    fn open(&mut self, now: Timestamp, charge: &Charge<'_>, decision: &Decision) {
        if let (Some(Reserving::Open(id)), Op::Take(1..)) = (charge.reserving, charge.op)
            && decision.is_allowed()
        {
            let (scope, text) = name(charge);
            let open = (now + decision.reset_after, now + RESERVATION_TTL);
            self.open.insert((scope, text, id.number()), open);
        }
    }

    /// The state of a key.
    pub fn state(&self, charge: &Charge<'_>) -> State {
        self.states.get(&name(charge)).cloned().unwrap_or_default()
    }

    fn charge(&mut self, now: Timestamp, charge: &Charge<'_>, op: Op) -> Decision {
        let limit: &Limit = charge.limit;
        limit.decide(self.states.entry(name(charge)).or_default(), now, op)
    }

    fn before(&self, charges: &[Charge<'_>]) -> Vec<((String, Vec<u8>), State)> {
        charges.iter().map(|charge| (name(charge), self.state(charge))).collect()
    }
}

fn name(charge: &Charge<'_>) -> (String, Vec<u8>) {
    (charge.key.scope.to_string(), charge.key.text.to_vec())
}
