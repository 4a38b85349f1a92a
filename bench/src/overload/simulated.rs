//! Compares the simulator with real servers: both should rank the limiters in the same order.

use std::fmt::Write as _;

use tidegate_sim::overload::{Contender as Simulated, Phase, Scenario, ServerKind, simulate};

use super::cell::Store;
use super::contender::Contender;
use super::page::{peak_of, share};
use super::work::Kind;

const PAIRS: [(Simulated, Contender, &str); 5] = [
    (Simulated::Unlimited, Contender::None, "no limiter"),
    (Simulated::Fixed, Contender::Fixed, "`fixed`"),
    (Simulated::Aimd, Contender::Aimd, "`aimd`"),
    (Simulated::Gradient2, Contender::Gradient2, "`gradient2`"),
    (Simulated::Adaptive, Contender::Tidegate, "`adaptive`"),
];

/// Goodput on P of the estimators, simulated and real, and `adaptive` on the other backends.
pub fn table(store: &Store) -> String {
    let mut text =
        "| | simulated 2 × | real 2 × | simulated 10 × | real 10 × |\n|---|---|---|---|---|\n"
            .to_owned();
    for (simulated, contender, title) in PAIRS {
        row(&mut text, store, (Kind::Pool, ServerKind::Pool), simulated, contender, title);
    }
    for (kind, server) in [
        (Kind::Cpu, ServerKind::Cpu),
        (Kind::Connections, ServerKind::Connections),
        (Kind::Thrashing, ServerKind::Thrashing),
    ] {
        for (simulated, contender, title) in [PAIRS[0], PAIRS[4]] {
            let title = format!("{title}, {}", kind.letter());
            row(&mut text, store, (kind, server), simulated, contender, &title);
        }
    }
    text
}

fn row(
    text: &mut String,
    store: &Store,
    (kind, server): (Kind, ServerKind),
    simulated: Simulated,
    contender: Contender,
    title: &str,
) {
    let _ = write!(text, "| {title} |");
    for load in [2, 10] {
        let scenario =
            Scenario { server, phases: vec![Phase::load(load * 100, 20)], ..Scenario::default() };
        let goodput = simulate(&scenario, simulated).goodput(5..20) as f64 / 100.0;
        let name = format!("E1-{}-{load}x-{}", kind.letter(), contender.name());
        let real = store.read(&name).and_then(|cell| Some(cell.rate() / peak_of(store, &cell)?));
        let _ = write!(text, " {goodput:.2} | {} |", share(real));
    }
    text.push('\n');
}
