//! A request is charged at most once, and not at all if it is denied.
//!
//! Not judged with leases: there a command takes units for many requests.

use std::collections::BTreeMap;

/// Units that the store took for requests, by request and key.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    carried_out: BTreeMap<(usize, usize), u64>,
    /// The part of these units that the request's node knows of.
    heard: BTreeMap<(usize, usize), u64>,
}

impl Charges {
    /// The store took units for a request of this cost.
    pub(crate) fn taken(
        &mut self,
        (request, key): (usize, usize),
        units: u64,
        cost: u64,
    ) -> Option<String> {
        let taken = self.carried_out.entry((request, key)).or_default();
        *taken += units;
        (*taken > cost).then(|| {
            format!("request {request} asked for {cost} of key {key}, and was charged {taken}")
        })
    }

    /// The node receives the answer.
    pub(crate) fn heard(&mut self, place: (usize, usize), units: u64) {
        *self.heard.entry(place).or_default() += units;
    }

    /// A request is denied.
    pub(crate) fn denied(&mut self, (request, key): (usize, usize)) -> Option<String> {
        let units = self.heard.get(&(request, key)).copied().unwrap_or(0);
        (units > 0)
            .then(|| format!("request {request} was denied, and charged {units} of key {key}"))
    }
}
