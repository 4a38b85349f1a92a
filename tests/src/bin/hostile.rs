//! `cargo xtask bench hostile`: the 99th percentile of normal clients beside each kind of hostile client.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tidegate_tests::hostile::{Effort, Kind, NormalStats, ask, attack, measure, table};

/// The target: a hostile client makes the p99 of normal clients at most this many times longer.
const MAX_RATIO: f64 = 3.0;

const USAGE: &str = "usage: hostile [--rounds N] [--seconds N] [--only KIND] [--write FILE]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("attack") => run_attack(&words[1..]),
        Some("normal") => run_normal(&words[1..]),
        _ => run_measure(&words),
    };
    match done {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs the hostile client: its kind, three addresses, and milliseconds.
fn run_attack(words: &[String]) -> Option<bool> {
    let (kind, words) = words.split_first()?;
    let (transports, length) = transports(words)?;
    let done = attack(Kind::named(kind)?, transports, length);
    println!("{done}");
    Some(true)
}

/// Runs the normal clients: three addresses, and milliseconds.
fn run_normal(words: &[String]) -> Option<bool> {
    let (transports, length) = transports(words)?;
    let NormalStats { answered, failed, p99 } = ask(&transports, length);
    println!("{answered} {failed} {}", p99.as_micros());
    Some(true)
}

/// The addresses for RESP, HTTP and gRPC, and the time to use them.
fn transports(words: &[String]) -> Option<([SocketAddr; 3], Duration)> {
    let [resp, http, grpc, millis] = words else { return None };
    let [resp, http, grpc] = [resp, http, grpc].map(|transport| transport.parse().ok());
    Some(([resp?, http?, grpc?], Duration::from_millis(millis.parse().ok()?)))
}

/// Measures, and returns whether every ratio is within the target.
fn run_measure(words: &[String]) -> Option<bool> {
    let mut effort = Effort { rounds: 7, part: Duration::from_secs(3) };
    let (mut kinds, mut page) = (Kind::ALL.to_vec(), None::<PathBuf>);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--rounds" => effort.rounds = value.parse().ok().filter(|rounds| *rounds > 0)?,
            "--seconds" => effort.part = Duration::from_secs(value.parse().ok()?),
            "--only" => kinds = vec![Kind::named(value)?],
            "--write" => page = Some(value.into()),
            _ => return None,
        }
    }
    let mut rows = Vec::new();
    for kind in kinds {
        let row = measure(kind, effort);
        println!(
            "{}: p99 {:?} without, {:?} with: {:.1} times; {} answered, {} failed, {} attacks, \
             bound: {:?}",
            kind.name(),
            row.without,
            row.with,
            row.ratio(),
            row.answered,
            row.failed,
            row.attacks,
            row.bound,
        );
        rows.push(row);
    }
    let table = table(&rows);
    println!("\n{table}");
    if page.is_some_and(|page| std::fs::write(page, table).is_err()) {
        return None;
    }
    let mut is_met = true;
    for row in rows.iter().filter(|row| row.ratio() > MAX_RATIO) {
        let (name, ratio) = (row.kind.name(), row.ratio());
        eprintln!("{name}: {ratio:.1} times the p99 without it, above the target of {MAX_RATIO}");
        is_met = false;
    }
    Some(is_met)
}
