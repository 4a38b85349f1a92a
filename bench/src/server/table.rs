//! What a run showed, for people.

use super::cell::Transport;
use super::row::{Rounds, Row};
use crate::report::{Table, grouped, ratio, short};

pub fn print(rounds: &[Rounds], memory: &[Row], left_out: &[(&str, String)]) {
    let mut groups: Vec<(Transport, Option<usize>, Option<usize>)> = Vec::new();
    for Rounds { row, .. } in rounds {
        let group = (row.transport, row.pipeline, row.conns);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (transport, pipeline, conns) in groups {
        let depth = pipeline.map_or_else(String::new, |depth| format!(", pipeline {depth}"));
        println!("\n### {transport:?}, {} connections{depth}\n", conns.unwrap_or(0));
        let mut table = Table::new(&[
            "impl",
            "CPU s/M",
            "min..max",
            "Redis s/M",
            "requests/s",
            "p50 us",
            "p99 us",
            "MiB",
        ]);
        let here =
            |row: &Row| (row.transport, row.pipeline, row.conns) == (transport, pipeline, conns);
        for Rounds { row, cpu: (least, most) } in rounds.iter().filter(|it| here(&it.row)) {
            table.push(vec![
                row.name.to_owned(),
                ratio(Some(row.cpu_s_per_m)),
                format!("{least:.2}..{most:.2}"),
                ratio(row.redis_cpu_s_per_m),
                grouped(row.rps as u32),
                short(Some(row.p50_us)),
                short(Some(row.p99_us)),
                short(Some(row.rss_mib)),
            ]);
        }
        table.print();
    }
    if !memory.is_empty() {
        println!("\n### resident memory that all keys added\n");
        let mut table = Table::new(&["impl", "MiB"]);
        memory.iter().for_each(|row| {
            table.push(vec![row.name.to_owned(), short(Some(row.rss_mib))]);
        });
        table.print();
    }
    for (name, why) in left_out {
        println!("\nLEFT OUT: {name}: {why}");
    }
}
