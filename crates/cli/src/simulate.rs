//! `tidegate simulate`: a cluster on simulated time.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use tidegate_sim::world::{WorldReport, WorldSetup, simulate_as_set_up};

use crate::args::{Cluster, Simulate, Simulated, no_such_world};
use crate::terminal::Terminal;

/// How many worlds pass between two words on how far it is, on a terminal and elsewhere.
const TOLD_EVERY: u64 = 100;
const LOGGED_EVERY: u64 = 10_000;

/// Runs worlds, and says by its exit status whether every promise was kept.
pub(crate) fn simulate(args: &Simulate, terminal: Terminal) -> Result<ExitCode, clap::Error> {
    let Simulated::Cluster(cluster) = &args.what;
    let mut out = io::stdout().lock();
    let mut all = WorldReport::default();
    for done in 0..cluster.worlds {
        let seed = cluster.seed.wrapping_add(done);
        let setup = cluster.setup(seed)?;
        let report = simulate_as_set_up(&setup).map_err(|why| no_such_world(&why))?;
        if report.broken.is_some() || cluster.worlds == 1 {
            // That the reader has gone (`| head`) changes nothing about the world.
            let _ = out.write_all(told(cluster, &setup, &report, terminal).as_bytes());
        }
        if report.broken.is_some() {
            return Ok(ExitCode::FAILURE);
        }
        add(&mut all, &report);
        match (done + 1, io::stderr().is_terminal()) {
            (done, true) if done % TOLD_EVERY == 0 => {
                let _ = write!(io::stderr(), "\r{done} of {} worlds", cluster.worlds);
            }
            (done, false) if done % LOGGED_EVERY == 0 => {
                let _ = writeln!(io::stderr(), "{done} of {} worlds", cluster.worlds);
            }
            _ => {}
        }
    }
    if cluster.worlds > 1 {
        let _ = writeln!(
            out,
            "{} worlds kept every promise: {} units asked for, {} admitted, {} requests denied, {} \
             answered without the store, {} failed, {} dropped, {} store calls",
            cluster.worlds,
            all.offered,
            all.admitted,
            all.denied,
            all.fallback,
            all.failed,
            all.dropped,
            all.store_calls
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn add(all: &mut WorldReport, one: &WorldReport) {
    all.offered += one.offered;
    all.admitted += one.admitted;
    all.denied += one.denied;
    all.fallback += one.fallback;
    all.failed += one.failed;
    all.dropped += one.dropped;
    all.store_calls += one.store_calls;
}

/// What there is to say of one world.
fn told(cluster: &Cluster, setup: &WorldSetup, report: &WorldReport, terminal: Terminal) -> String {
    let faults: Vec<&str> = report.faults.iter().map(|fault| fault.as_str()).collect();
    let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(", ") };
    let limit = match setup.in_flight {
        true => format!("{} places in flight", setup.burst),
        false => format!("{} {} with a burst of {}", setup.algorithm, setup.rate, setup.burst),
    };
    let heading = format!(
        "{} nodes, {} keys, {}, {}, on_store_failure {}, {}% load, {} s, seed {}. Faults: {faults}.",
        setup.nodes,
        setup.keys,
        limit,
        setup.stack,
        setup.on_store_failure.as_str(),
        setup.load,
        setup.seconds,
        setup.seed.0
    );
    let mut text = terminal.wrap("", &heading);
    for (name, figure) in [
        ("units asked for", report.offered),
        ("admitted", report.admitted),
        ("envelope", report.envelope),
        ("denied", report.denied),
        ("fallback", report.fallback),
        ("failed", report.failed),
        ("dropped", report.dropped),
        ("store calls", report.store_calls),
    ] {
        let _ = writeln!(text, "  {name:<16}{figure:>12}");
    }
    let calls = report.calls_per_thousand();
    let calls = format!("{}.{:03}", calls / 1_000, calls % 1_000);
    let _ = writeln!(text, "  {:<16}{calls:>12}", "per request");
    let _ = writeln!(text, "  {:<16}{:>11}%", "utilisation", report.utilisation());
    let _ = writeln!(text, "  {:<16}{:>16}", "trace", report.trace.to_string());
    match &report.broken {
        None => text.push_str("Every promise was kept.\n"),
        Some(broken) => {
            let _ = writeln!(text, "{} {broken}", terminal.warning("BROKEN"));
            let (seed, given) = (setup.seed.0, cluster.given());
            let _ = writeln!(text, "See it again: tidegate simulate cluster --seed {seed}{given}");
        }
    }
    text
}
