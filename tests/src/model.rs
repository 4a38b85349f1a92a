//! The sequential model: one state per key, one decision after the other.

use std::collections::HashMap;

use tidegate::store::Charge;
use tidegate::{Algorithm, Decision, Limit, Op, State, Timestamp};

/// What a correct store does, as plainly as it can be said.
#[derive(Debug, Default)]
pub struct Model {
    states: HashMap<(String, Vec<u8>), State>,
}

impl Model {
    /// Decides the charges of one request: takes and reads all or nothing, the rest each alone.
    pub fn decide(&mut self, now: Timestamp, charges: &[Charge<'_>]) -> Vec<Decision> {
        let asks = |charge: &Charge<'_>| matches!(charge.op, Op::Take(_) | Op::Read(_));
        if charges.len() == 1 || !charges.iter().all(asks) {
            return charges.iter().map(|charge| self.charge(now, charge, charge.op)).collect();
        }
        let before = self.before(charges);
        let tried: Vec<Decision> =
            charges.iter().map(|charge| self.charge(now, charge, charge.op)).collect();
        if tried.iter().all(Decision::is_allowed) {
            return tried;
        }
        // No limit is charged: each reports its state, and a denying limit keeps the state of its denial.
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
                // Only an earlier charge of the same request stood in its way.
                (false, true) => tried,
            });
        }
        decisions
    }

    /// What is known of a key.
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
