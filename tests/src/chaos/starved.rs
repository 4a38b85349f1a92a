//! Daemons starve for CPU time and Redis does not: exactly the limit is still admitted.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::callers::{Callers, Outcome, start_daemons};
use super::figure::Figure;
use super::node::TIMEOUT;
use super::pace::Pace;
use super::peer::Peer;
use super::strain::Strain;
use crate::servers::{Daemon, Priority, RedisServer, wait_until};

const SHORT_PAUSE: Duration = Duration::from_millis(30);
const LONG_PAUSE: Duration = Duration::from_millis(300);

pub(crate) fn starved(pace: &Pace) -> Vec<Figure> {
    let redis = RedisServer::start();
    let daemons = start_daemons(&redis.url());
    let mut figures = kept_runnable(pace, &redis, &daemons);
    if pace.compares {
        drop(daemons);
        figures.extend(starved_too(pace));
    }
    figures
}

/// Every kind of starvation, with Redis kept runnable.
fn kept_runnable(pace: &Pace, redis: &RedisServer, daemons: &[Daemon]) -> Vec<Figure> {
    let priority = Priority::raise(redis.pid());
    let fixed = [Strain::Idle, Strain::InTurn(SHORT_PAUSE), Strain::Once(LONG_PAUSE)];
    let loops = pace.loops.iter().map(|count| Strain::Loops(*count));
    let limits = pace.cpu_limits.iter().map(|quota| Strain::Limit(Duration::from_millis(*quota)));
    let mut figures = Vec::new();
    for strain in fixed.into_iter().chain(loops).chain(limits) {
        if let (Err(error), true) = (&priority, strain.takes_from_all()) {
            let why = format!("{strain}: left out, Redis cannot be kept runnable: {error}");
            figures.push(Figure::left_out(why));
            continue;
        }
        let pids: Vec<u32> = daemons.iter().map(Daemon::pid).collect();
        let groups = match strain.limits(&pids) {
            Ok(groups) => groups,
            Err(error) => {
                let why = format!("{strain}: left out, no CPU cgroup can be created: {error}");
                figures.push(Figure::left_out(why));
                continue;
            }
        };
        let mut worst: Option<Outcome> = None;
        for round in 0..pace.rounds {
            let outcome = run(pace, strain, daemons, round);
            match &mut worst {
                Some(worst) => worst.worsen(&outcome),
                None => worst = Some(outcome),
            }
        }
        drop(groups);
        figures.extend(worst.iter().flat_map(|worst| worst.figures(&strain.to_string())));
        // The next kind of starvation starts with a closed circuit.
        let is_well = || daemons.iter().all(|daemon| !daemon.is_degraded());
        wait_until("every daemon uses Redis again", TIMEOUT, is_well);
    }
    figures
}

fn run(pace: &Pace, strain: Strain, daemons: &[Daemon], round: u32) -> Outcome {
    // A storm has many requests in progress at each pause; a longer round meets more pauses.
    let time = if round.is_multiple_of(2) { Duration::ZERO } else { pace.spread };
    let value = format!("{strain} {round}");
    let answered: Vec<AtomicU64> = daemons.iter().map(|_| AtomicU64::new(0)).collect();
    let each = pace.requests / daemons.len() as u64;
    let callers = Callers::of(daemons);
    strain.during(daemons, (&answered, each), || {
        callers.ask((pace.requests, time), &value, &answered)
    })
}

/// Redis competes for CPU time as well: units admitted by Tidegate and envoyproxy/ratelimit.
fn starved_too(pace: &Pace) -> Vec<Figure> {
    let limits = [Strain::Limit(Duration::from_millis(20))];
    let loops = pace.loops.iter().map(|count| Strain::Loops(*count));
    let mut figures = Vec::new();
    for strain in loops.chain(limits) {
        for program in ["Tidegate", "envoyproxy/ratelimit"] {
            let what = format!("Redis starved too, {strain}, {program}");
            match run_starved_too(pace, strain, program) {
                Ok(outcome) => figures.extend(outcome.without_target(&what)),
                Err(why) => figures.push(Figure::left_out(format!("{what}: left out, {why}"))),
            }
        }
    }
    figures
}

fn run_starved_too(pace: &Pace, strain: Strain, program: &str) -> Result<Outcome, String> {
    let redis = RedisServer::start();
    let (mut daemons, mut peers) = (Vec::new(), Vec::new());
    let (callers, mut pids) = if program == "Tidegate" {
        daemons = start_daemons(&redis.url());
        (Callers::of(&daemons), daemons.iter().map(Daemon::pid).collect::<Vec<_>>())
    } else {
        peers = Peer::start_all(&redis)?;
        (Peer::callers(&peers), peers.iter().map(Peer::pid).collect())
    };
    pids.push(redis.pid());
    let groups = strain.limits(&pids).map_err(|error| format!("no CPU cgroup: {error}"))?;
    let answered: Vec<AtomicU64> = callers.transports.iter().map(|_| AtomicU64::new(0)).collect();
    let outcome = strain.during(&[], (&answered, 0), || {
        // As fast as possible, because the rate is a figure too.
        callers.ask((pace.requests, Duration::ZERO), "all", &answered)
    });
    drop((groups, daemons, peers));
    Ok(outcome)
}
