//! `gateway`: the gateway in front of a small service, beside reverse proxies. All have one worker, are up at
//! once, and rounds are interleaved.

mod faults;
mod members;
mod memory;
mod shapes;

use std::time::Duration;

use serde::Serialize;

use self::members::{LIMIT_REQ, Members, NGINX, OURS, OURS_LIMITED, PINGORA};
use crate::options::Options;
use crate::report::{self, Table, grouped, ratio, short};
use crate::row::median;
use crate::server::load::{Load, Speech, Until};
use crate::server::member::{Member, cpu};
use crate::server::wire::{Answers, get};
use crate::targets::{Bound, Target};
use crate::{Failure, server::Trouble};

const CONNECTIONS: usize = 50;
const KEYS: u32 = 10_000;

/// One proxy in one round, or the median of all.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(rename = "impl")]
    name: &'static str,
    /// Processor seconds of the proxy per million requests.
    cpu_s_per_m: f64,
    least: f64,
    most: f64,
    rps: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Everything that is written.
#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    shapes: Vec<shapes::Row>,
    faults: Vec<faults::Row>,
    memory: memory::Memory,
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let quick = options.quick;
    let rounds = options.rounds.unwrap_or(if quick { 1 } else { 5 });
    let millis = options.millis.unwrap_or(if quick { 40 } else { 1_500 });
    let mut members = Members::start(quick)?;
    let mut samples: Vec<(&'static str, Vec<Row>)> = Vec::new();
    for round in 1..=rounds {
        for (name, member) in members.all().filter(|(name, _)| options.wants(name)) {
            let row = sample(name, member, Duration::from_millis(millis))
                .map_err(|trouble| format!("{name}: {}", trouble.0))?;
            eprintln!("round {round}/{rounds} {name}: {:.2} s/M", row.cpu_s_per_m);
            match samples.iter_mut().find(|(known, _)| *known == name) {
                Some((_, rows)) => rows.push(row),
                None => samples.push((name, vec![row])),
            }
        }
    }
    let rows: Vec<Row> = samples.iter().map(|(_, rows)| middle(rows)).collect();
    let seconds = if quick { 0.1 } else { 2.0 };
    let shapes = match options.wants("shapes") {
        true => shapes::measure(&mut members, rounds.min(3), (CONNECTIONS, seconds))?,
        false => Vec::new(),
    };
    let faults = match options.wants("faults") {
        true => faults::measure(&members, rounds, Duration::from_millis(millis))?,
        false => Vec::new(),
    };
    let memory = memory::measure(&members, quick)?;
    print(&rows, &memory, &members.left_out);
    print_shapes(&shapes);
    print_faults(&faults);
    report::plain_targets(&targets(&rows, &memory));
    report::write(&options.out("gateway.json"), &Results { rows, shapes, faults, memory })
}

fn load(member: &Member, conns: usize) -> Load {
    let speech = Speech::Bytes { answers: Answers::Http, pipeline: 1 };
    Load { address: member.address(0), speech, template: get("/"), conns, keys: KEYS }
}

fn sample(name: &'static str, member: &Member, slice: Duration) -> Result<Row, Trouble> {
    let load = load(member, CONNECTIONS);
    load.run(Until::Over(slice / 5))?;
    let before = cpu(member.pid());
    let seen = load.run(Until::Over(slice))?;
    let cpu_s_per_m = (cpu(member.pid()) - before) * 1e6 / seen.decisions as f64;
    Ok(Row {
        name,
        cpu_s_per_m,
        least: cpu_s_per_m,
        most: cpu_s_per_m,
        rps: seen.decisions as f64 / seen.wall.as_secs_f64(),
        p50_us: seen.percentile(50),
        p99_us: seen.percentile(99),
    })
}

/// The median of each figure, and how far the rounds lie apart.
fn middle(rows: &[Row]) -> Row {
    let middle = |field: fn(&Row) -> f64| median(rows.iter().map(field).collect());
    let cpu = || rows.iter().map(|row| row.cpu_s_per_m);
    Row {
        name: rows[0].name,
        cpu_s_per_m: middle(|row| row.cpu_s_per_m),
        least: cpu().fold(f64::MAX, f64::min),
        most: cpu().fold(f64::MIN, f64::max),
        rps: middle(|row| row.rps),
        p50_us: middle(|row| row.p50_us),
        p99_us: middle(|row| row.p99_us),
    }
}

fn print(rows: &[Row], memory: &memory::Memory, left_out: &[(&str, String)]) {
    let nginx = cpu_of(rows, NGINX);
    println!("\n### keep-alive, {CONNECTIONS} connections, a body of 33 bytes\n");
    let mut table =
        Table::new(&["impl", "CPU s/M", "min..max", "/ nginx", "requests/s", "p50 us", "p99 us"]);
    for row in rows {
        table.push(vec![
            row.name.to_owned(),
            ratio(Some(row.cpu_s_per_m)),
            format!("{:.2}..{:.2}", row.least, row.most),
            ratio(nginx.map(|nginx| row.cpu_s_per_m / nginx)),
            grouped(row.rps as u32),
            short(Some(row.p50_us)),
            short(Some(row.p99_us)),
        ]);
    }
    table.print();
    println!("\n### resident memory of the gateway, MiB\n");
    let mut table = Table::new(&["state", "MiB"]);
    for (state, mib) in [
        ("empty", memory.empty),
        ("connections with a request each", memory.busy),
        ("idle connections", memory.idle),
    ] {
        table.push(vec![state.to_owned(), short(Some(mib))]);
    }
    table.print();
    println!("\n{} busy and {} idle connections", memory.busy_connections, memory.idle_connections);
    for (name, why) in left_out {
        println!("\nLEFT OUT: {name}: {why}");
    }
}

fn print_shapes(rows: &[shapes::Row]) {
    println!("\n### clients of other kinds, {CONNECTIONS} connections\n");
    let mut table = Table::new(&["clients", "impl", "CPU s/M", "/ nginx", "requests/s"]);
    for row in rows {
        let nginx = rows.iter().find(|it| it.shape == row.shape && it.name == NGINX);
        table.push(vec![
            row.shape.to_owned(),
            row.name.to_owned(),
            ratio(Some(row.cpu_s_per_m)),
            ratio(nginx.map(|nginx| row.cpu_s_per_m / nginx.cpu_s_per_m)),
            grouped(row.rps as u32),
        ]);
    }
    table.print();
}

fn print_faults(rows: &[faults::Row]) {
    println!("\n### p99 of a service while one of three addresses of another has a fault\n");
    let mut table = Table::new(&[
        "address",
        "p99 us without",
        "min..max",
        "with",
        "ratio",
        "failed at the faulty service",
    ]);
    for row in rows {
        table.push(vec![
            row.fault.name().to_owned(),
            short(Some(row.without_us)),
            format!("{:.0}..{:.0}", row.least_us, row.most_us),
            short(Some(row.with_us)),
            ratio(Some(row.with_us / row.without_us)),
            format!("{} of {}", row.failed, grouped(row.requests as u32)),
        ]);
    }
    table.print();
}

fn cpu_of(rows: &[Row], name: &str) -> Option<f64> {
    rows.iter().find(|row| row.name == name).map(|row| row.cpu_s_per_m)
}

fn targets(rows: &[Row], memory: &memory::Memory) -> Vec<Target> {
    let ratio = |one: &str, other: &str| Some(cpu_of(rows, one)? / cpu_of(rows, other)?);
    let most = Bound::AtMost;
    vec![
        Target::new("without a policy, CPU / nginx proxy_pass", most(1.25), ratio(OURS, NGINX)),
        Target::new("without a policy, CPU / Pingora", most(0.75), ratio(OURS, PINGORA)),
        Target::new(
            "limit per key, CPU / nginx limit_req",
            most(1.4),
            ratio(OURS_LIMITED, LIMIT_REQ),
        ),
        Target::new("10,000 idle connections, MiB", most(250.0), memory.at_full_size(memory.idle)),
        Target::new(
            "1,000 busy connections, MiB over the empty daemon",
            most(24.0),
            memory.at_full_size(memory.busy - memory.empty),
        ),
    ]
}
