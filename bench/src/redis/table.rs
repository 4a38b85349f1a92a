//! What a run showed, for people.

use super::row::{Rounds, Row, Run, StandIn};
use crate::report::{Table, grouped, ratio, short};

pub fn print(run: &Run) {
    let mut groups: Vec<(u32, usize)> = Vec::new();
    for Rounds { row, .. } in &run.rounds {
        let group = (row.cell.keys, row.cell.callers);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (keys, callers) in groups {
        let plural = |count: u32| if count == 1 { "" } else { "s" };
        let (s, rs) = (plural(keys), plural(callers as u32));
        println!("\n### {} key{s}, {callers} caller{rs}\n", grouped(keys));
        let mut table = Table::new(&[
            "impl",
            "mode",
            "decisions/s",
            "Redis s/M",
            "min..max",
            "/ script",
            "client s/M",
            "min..max",
            "/ script",
            "commands",
            "retries",
            "p50 us",
            "p99 us",
            "B/key",
            "MEMORY USAGE",
        ]);
        let here = |rounds: &&Rounds| (rounds.row.cell.keys, rounds.row.cell.callers);
        for rounds in run.rounds.iter().filter(|rounds| here(rounds) == (keys, callers)) {
            table.push(line(run, rounds));
        }
        table.print();
    }
    if let Some(StandIn { bytes_per_key, memory_usage }) = run.stand_in {
        println!(
            "\nredis-cell was not there ({} names its library). Keys with the value it keeps, 19 \
             digits as text with a time to live, took {bytes_per_key:.1} B each, by MEMORY USAGE \
             {memory_usage:.0}.",
            super::MODULE,
        );
    }
}

fn line(run: &Run, rounds: &Rounds) -> Vec<String> {
    let row = &rounds.row;
    let script = run.script(&row.cell);
    let over = |field: fn(&Row) -> f64| ratio(script.map(|script| field(row) / field(script)));
    let apart = |(least, most): (f64, f64)| format!("{least:.2}..{most:.2}");
    vec![
        row.cell.name.as_str().to_owned(),
        row.cell.mode.as_str().to_owned(),
        grouped(row.decisions_per_s as u32),
        ratio(Some(row.redis_cpu_s_per_m)),
        apart(rounds.redis_cpu),
        over(|row| row.redis_cpu_s_per_m),
        ratio(Some(row.client_cpu_s_per_m)),
        apart(rounds.client_cpu),
        over(|row| row.client_cpu_s_per_m),
        format!("{:.3}", row.commands_per_decision),
        ratio((rounds.retries_per_decision > 0.0).then_some(rounds.retries_per_decision)),
        short(Some(row.p50_us)),
        short(Some(row.p99_us)),
        short(row.bytes_per_key),
        short(rounds.memory_usage),
    ]
}
