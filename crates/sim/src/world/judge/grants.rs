//! A node admits on the store's word, and returns, no more than the store granted it.
//!
//! A grant of a bucket lasts for a lease time, counted from when the node sent its command. The bound on all
//! admissions alone would not notice a lease that is spent a little too late, or a grant that a node presumes.

use std::collections::VecDeque;

use tidegate::store::lease::LEASE;

#[derive(Debug)]
pub(crate) struct Grants {
    /// By node and key.
    held: Vec<Vec<VecDeque<Grant>>>,
    /// Whether grants end before their window.
    do_end: bool,
}

/// Units that a node may spend. Times are microseconds since the world began.
#[derive(Clone, Copy, Debug)]
struct Grant {
    units: u64,
    until: u64,
}

impl Grants {
    pub(crate) fn new(nodes: usize, keys: usize, do_end: bool) -> Self {
        Self { held: vec![vec![VecDeque::new(); keys]; nodes], do_end }
    }

    /// A node learns that the store granted it units, by a command sent at `sent`.
    pub(crate) fn granted(&mut self, (node, key): (usize, usize), units: u64, sent: u64) {
        // Clocks run slow by less than 200 ppm.
        let lasts = LEASE.as_micros() + LEASE.as_micros() / 5_000 + 1;
        let until = if self.do_end { sent + lasts } else { u64::MAX };
        if units > 0 {
            self.held[node][key].push_back(Grant { units, until });
        }
    }

    /// A node spends units on a request that arrived at `asked`, or returns them.
    pub(crate) fn spent(
        &mut self,
        (node, key): (usize, usize),
        units: u64,
        asked: u64,
    ) -> Option<String> {
        let (held, mut rest) = (&mut self.held[node][key], units);
        // The grant that ends first is spent first.
        for grant in held.iter_mut().filter(|grant| grant.until >= asked) {
            let used = rest.min(grant.units);
            (grant.units, rest) = (grant.units - used, rest - used);
        }
        held.retain(|grant| grant.units > 0);
        (rest > 0).then(|| {
            format!("node {node} spent {rest} of key {key} that the store had not granted")
        })
    }

    /// A node crashes.
    pub(crate) fn restart(&mut self, node: usize) {
        self.held[node].iter_mut().for_each(VecDeque::clear);
    }
}
