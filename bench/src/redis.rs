//! `redis`: the store in Redis beside a counter, a minimal script, the same without a script, and
//! redis-cell. One server, one process per measurement, interleaved rounds.

pub mod contender;
pub mod load;
mod ours;
mod rivals;
mod row;
pub mod server;
mod table;
mod verdicts;

use std::time::Duration;

use tidegate_tests::servers::RedisServer;

use self::contender::{Cell, Contender, MANY, Name, Trouble};
use self::row::{Rounds, Row, Run, Sample, StandIn};
use self::server::Control;
use crate::candidate::{LimitNumbers, Path};
use crate::measure::process_cpu;
use crate::options::{self, Options};
use crate::traffic::{self, Access, Names};
use crate::{Failure, report};

/// Names the library of redis-cell, `libredis_cell.so`.
const MODULE: &str = "TIDEGATE_REDIS_CELL";

/// Enough keys to measure the memory of one; with fewer, the tables of the server dominate.
const KEYS: u32 = 100_000;

pub fn run(options: &Options) -> Result<(), Failure> {
    let quick = options.quick;
    let keys = options.keys.as_ref().map_or(if quick { 2_000 } else { KEYS }, |keys| keys[0]);
    let rounds = options.rounds.unwrap_or(if quick { 1 } else { 5 });
    let millis = options.millis.unwrap_or(if quick { 50 } else { 1_000 });
    let module = std::env::var_os(MODULE).map(|path| path.to_string_lossy().into_owned());
    let mut builder = RedisServer::builder();
    if let Some(module) = &module {
        builder = builder.arg("loadmodule", module);
    }
    let server = builder.start();
    let mut cells = Cell::all(keys, module.is_some());
    cells.retain(|cell| options.wants(&cell.label()));

    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cells.len()];
    for round in 1..=rounds {
        for (cell, samples) in cells.iter().zip(&mut samples) {
            let (url, text) = (server.url(), serde_json::to_string(cell)?);
            let arguments = ["one-redis", &url, &text, &millis.to_string()];
            let sample: Sample = crate::child::in_child(&arguments)?;
            let Row { redis_cpu_s_per_m, client_cpu_s_per_m, .. } = sample.row;
            eprintln!(
                "round {round}/{rounds} {}: Redis {redis_cpu_s_per_m:.2} s/M, client {client_cpu_s_per_m:.2} s/M",
                cell.label()
            );
            samples.push(sample);
        }
    }
    let rounds: Vec<Rounds> = samples.iter().map(|samples| Rounds::of(samples)).collect();
    let stand_in = match &module {
        Some(_) => None,
        None => Some(stand_in(&server.url(), keys).map_err(|trouble| trouble.0)?),
    };
    let run = Run { keys, rounds, stand_in };
    table::print(&run);
    let targets = verdicts::evaluate(&run);
    report::plain_targets(&targets);
    let rows: Vec<&Row> = run.rounds.iter().map(|rounds| &rounds.row).collect();
    report::write(&options.out("redis.json"), &rows)
}

/// `one-redis URL CELL MILLIS`: fills one contender's keys and takes one sample.
pub fn child(arguments: &[String]) -> Result<(), Failure> {
    let [url, cell, millis] = arguments else { return Err("URL CELL MILLIS".into()) };
    let cell: Cell = serde_json::from_str(cell)?;
    let slice = Duration::from_millis(u64::from(options::number(millis)?));
    // One thread, as each core of a busy node has: the other core of this machine is the server's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sample = runtime.block_on(measure(url, &cell, slice)).map_err(|trouble| trouble.0)?;
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

async fn measure(url: &str, cell: &Cell, slice: Duration) -> Result<Sample, Trouble> {
    let terms = LimitNumbers::of(Path::Allow, cell.keys);
    match cell.name {
        Name::Incr => sample(url, cell, slice, rivals::Incr::new(url).await?).await,
        Name::GcraScript => sample(url, cell, slice, rivals::Script::new(url, terms).await?).await,
        Name::GcraWatch => sample(url, cell, slice, rivals::Watch::new(url, terms)).await,
        Name::RedisCell => sample(url, cell, slice, rivals::Module::new(url, terms).await?).await,
        Name::Tidegate => {
            let tidegate = ours::Tidegate::new(url, cell.mode, terms).await?;
            sample(url, cell, slice, tidegate).await
        }
    }
}

async fn sample<C: Contender>(
    url: &str,
    cell: &Cell,
    slice: Duration,
    contender: C,
) -> Result<Sample, Trouble> {
    let mut control = Control::connect(url)?;
    let _: () = control.ask(&["FLUSHALL", "SYNC"])?;
    let empty = control.account()?.number("used_memory");
    load::fill(&contender, cell.keys, MANY).await?;
    let many = cell.keys > 1;
    let bytes_per_key =
        if many { Some((control.bytes()? - empty) / f64::from(cell.keys)) } else { None };
    let some_key: String = control.ask(&["RANDOMKEY"])?;
    let usage: f64 = control.ask(&["MEMORY", "USAGE", &some_key])?;

    let access = if many { Access::Uniform } else { Access::Hot };
    let requests = traffic::requests(Names::Single, cell.keys, access, 7).into();
    load::run(&contender, &requests, cell.callers, slice / 4).await?;
    let (before, cpu, retries) = (control.account()?, process_cpu(), contender.retries());
    let seen = load::run(&contender, &requests, cell.callers, slice).await?;
    let (cpu, after) = (process_cpu() - cpu, control.account()?);
    let per_million = |seconds: f64| seconds * 1e6 / seen.decisions();
    let calls = after.calls(C::COMMANDS) - before.calls(C::COMMANDS);
    Ok(Sample {
        row: Row {
            cell: cell.clone(),
            decisions_per_s: seen.decisions() / seen.wall.as_secs_f64(),
            redis_cpu_s_per_m: per_million(after.cpu() - before.cpu()),
            client_cpu_s_per_m: per_million(cpu.as_secs_f64()),
            commands_per_decision: calls / seen.decisions(),
            p50_us: seen.percentile(50),
            p99_us: seen.percentile(99),
            bytes_per_key,
        },
        retries_per_decision: (contender.retries() - retries) as f64 / seen.decisions(),
        memory_usage: Some(usage),
    })
}

/// Measures the memory that redis-cell would take. Its module writes nanoseconds with 19 digits as
/// text, which `SET` would turn into a number, so a letter replaces the first digit.
fn stand_in(url: &str, keys: u32) -> Result<StandIn, Trouble> {
    let mut control = Control::connect(url)?;
    let _: () = control.ask(&["FLUSHALL", "SYNC"])?;
    let empty = control.bytes()?;
    let mut request = Names::Single.request();
    for index in 0..keys {
        Names::Single.write(&mut request, index);
        let _: () =
            control.ask(&["SET", &request.key, "t763229600123456789", "PX", "1200000000000"])?;
    }
    let bytes_per_key = (control.bytes()? - empty) / f64::from(keys);
    let memory_usage = control.ask(&["MEMORY", "USAGE", &request.key])?;
    Ok(StandIn { bytes_per_key, memory_usage })
}
