//! The targets of the layers.

use super::Results;
use super::cold::{self, Way};
use super::near::{Answer, Holder};
use super::nodes::{self, Kind};
use crate::report::grouped;
use crate::targets::{Bound, Target};

pub fn evaluate(results: &Results) -> Vec<Target> {
    let mut targets = near(results);
    targets.extend(cold(results));
    targets.extend(nodes(results));
    targets
}

/// A decision answered without the store costs at most twice the memory store's own.
fn near(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    let ours = results.near.iter().filter(|row| row.cell.store == Holder::Layers);
    for ours in ours {
        let same = |row: &&super::near::Row| {
            row.cell == super::near::Cell { store: Holder::Memory, ..ours.cell }
        };
        let peer = results.near.iter().find(same);
        let by = match ours.cell.answer {
            Answer::Allow => "from a lease",
            Answer::Deny => "by the deny cache",
        };
        let keys = grouped(ours.cell.keys);
        let what = format!("{by}, {keys} keys, time / memory store");
        let value = peer.map(|peer| ours.ns_per_decision / peer.ns_per_decision);
        targets.push(Target::new(&what, Bound::AtMost(2.0), value));
    }
    targets
}

/// A key that is not hot costs at most a tenth more than with the bare store, in the client and in
/// total.
fn cold(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for ours in results.cold.iter().filter(|row| row.cell.way != Way::Bare) {
        let same = |row: &&cold::Row| row.cell == cold::Cell { way: Way::Bare, ..ours.cell };
        let peer = results.cold.iter().find(same);
        for (of, field) in [
            ("client CPU", (|row| row.client_cpu_s_per_m) as fn(&cold::Row) -> f64),
            ("CPU with Redis", |row| row.client_cpu_s_per_m + row.redis_cpu_s_per_m),
        ] {
            let (way, callers) = (format!("{:?}", ours.cell.way).to_lowercase(), ours.cell.callers);
            let what = format!("not hot, {way}, {callers} callers, {of} / bare store");
            let value = peer.map(|peer| field(ours) / field(peer));
            targets.push(Target::new(&what, Bound::AtMost(1.1), value));
        }
    }
    targets
}

fn nodes(results: &Results) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    let find =
        |tier, times| results.nodes.iter().find(|row| row.cell == nodes::Cell { tier, times });
    let (level, tenfold) = (find(Kind::Leased, 1), find(Kind::Leased, 10));
    let commands = |row: Option<&nodes::Row>| row.map(|row| row.commands_per_decision);
    let excess = results.nodes.iter().map(|row| row.excess).reduce(f64::max);
    let target = Target::new;
    vec![
        target("8 nodes at the limit, leased, commands per decision", AtMost(0.05), {
            commands(level)
        }),
        target("8 nodes at the limit, leased, admitted / rate x time", AtLeast(0.99), {
            level.map(|row| row.admitted_share)
        }),
        target("8 nodes at ten times the limit, leased, commands per request", AtMost(0.05), {
            commands(tenfold)
        }),
        target("8 nodes, units above the limit in any interval", AtMost(0.0), excess),
    ]
}
