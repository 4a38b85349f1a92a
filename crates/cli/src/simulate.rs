//! `tidegate simulate`: a cluster on simulated time.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

use tidegate_sim::world::{WorldReport, WorldSetup, simulate_as_set_up};

use crate::args::{Cluster, Simulate, Simulated, no_such_world};
use crate::overload;
use crate::terminal::Terminal;

/// Worlds that each thread runs between two progress reports.
const AT_A_TIME: u64 = 32;
/// Worlds between two progress reports when stderr is not a terminal.
const LOGGED_EVERY: u64 = 10_000;

/// Runs worlds; the exit status tells whether every promise was kept.
pub(crate) fn simulate(args: &Simulate, terminal: Terminal) -> Result<ExitCode, clap::Error> {
    let cluster = match &args.what {
        Simulated::Cluster(cluster) => cluster,
        Simulated::Overload(args) => return overload::overload(args, terminal),
    };
    let mut out = io::stdout().lock();
    let mut all = WorldReport::default();
    let (threads, mut done) = (threads(), 0);
    while done < cluster.worlds {
        let next = (threads * AT_A_TIME).min(cluster.worlds - done);
        for world in worlds(cluster, threads, done..done + next) {
            let (setup, report) = world?;
            if report.broken.is_some() || cluster.worlds == 1 {
                // A closed pipe (`| head`) is not an error of the world.
                let _ = out.write_all(report_text(cluster, &setup, &report, terminal).as_bytes());
            }
            if report.broken.is_some() {
                return Ok(ExitCode::FAILURE);
            }
            add(&mut all, &report);
        }
        done += next;
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r{done} of {} worlds", cluster.worlds);
        } else if done / LOGGED_EVERY > (done - next) / LOGGED_EVERY {
            let _ = writeln!(io::stderr(), "{done} of {} worlds", cluster.worlds);
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

fn threads() -> u64 {
    thread::available_parallelism().map_or(1, |threads| threads.get() as u64)
}

/// The result of a world.
type World = Result<(WorldSetup, WorldReport), clap::Error>;

/// Runs worlds in parallel and returns them in the order of their seeds: the first that breaks a promise is the
/// same with any number of threads.
fn worlds(cluster: &Cluster, threads: u64, numbers: Range<u64>) -> Vec<World> {
    let part = (numbers.end - numbers.start).div_ceil(threads).max(1);
    let parts = numbers.clone().step_by(usize::try_from(part).unwrap_or(usize::MAX));
    let world = |number| {
        let setup = cluster.setup(cluster.seed.wrapping_add(number))?;
        let report = simulate_as_set_up(&setup).map_err(|why| no_such_world(&why))?;
        Ok((setup, report))
    };
    thread::scope(|scope| {
        let run = |first: u64| {
            let numbers = first..numbers.end.min(first + part);
            scope.spawn(move || numbers.map(world).collect::<Vec<World>>())
        };
        let running: Vec<_> = parts.map(run).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.flat_map(|worlds| worlds.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
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

/// The report of one world.
fn report_text(
    cluster: &Cluster,
    setup: &WorldSetup,
    report: &WorldReport,
    terminal: Terminal,
) -> String {
    let faults: Vec<&str> = report.faults.iter().map(|fault| fault.as_str()).collect();
    let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(", ") };
    let limit = match setup.in_flight {
        true => format!("at most {} in flight", setup.burst),
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
        ("units requested", report.offered),
        ("of two keys", report.pairs),
        ("admitted", report.admitted),
        ("limit alone", report.envelope),
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
    let above = report.admitted.saturating_sub(report.envelope);
    if above > 0 {
        // Otherwise "131%" and "every promise was kept" contradict each other.
        let explanation = format!(
            "{above} units more than the limit alone; the faults of this world allow for them \
             (docs/reference/simulated-promises.md)."
        );
        text.push_str(&terminal.wrap("  ", &explanation));
    }
    let _ = writeln!(text, "  {:<16}{:>16}", "trace", report.trace.to_string());
    match &report.broken {
        None => text.push_str("Every promise was kept.\n"),
        Some(broken) => {
            let _ = writeln!(text, "{} {broken}", terminal.warning("BROKEN"));
            let (seed, given) = (setup.seed.0, cluster.given());
            let _ =
                writeln!(text, "Repeat it with: tidegate simulate cluster --seed {seed}{given}");
        }
    }
    text
}
