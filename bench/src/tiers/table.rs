//! What a run showed, for people.

use super::Results;
use crate::report::{Table, grouped, ratio, short};

pub fn print(results: &Results) {
    println!("\n### answered without the store, beside the memory store\n");
    let mut table = Table::new(&["store", "answer", "keys", "ns", "min..max"]);
    for row in &results.near {
        table.push(vec![
            format!("{:?}", row.cell.store),
            format!("{:?}", row.cell.answer),
            grouped(row.cell.keys),
            short(Some(row.ns_per_decision)),
            format!("{}..{}", short(Some(row.ns_min)), short(Some(row.ns_max))),
        ]);
    }
    table.print();
    println!("\n### keys that are not hot\n");
    let mut table = Table::new(&[
        "way",
        "keys",
        "callers",
        "decisions/s",
        "client s/M",
        "Redis s/M",
        "commands",
        "p50 us",
        "p99 us",
    ]);
    for row in &results.cold {
        table.push(vec![
            format!("{:?}", row.cell.way),
            grouped(row.cell.keys),
            row.cell.callers.to_string(),
            grouped(row.decisions_per_s as u32),
            ratio(Some(row.client_cpu_s_per_m)),
            ratio(Some(row.redis_cpu_s_per_m)),
            format!("{:.3}", row.commands_per_decision),
            short(Some(row.p50_us)),
            short(Some(row.p99_us)),
        ]);
    }
    table.print();
    println!("\n### eight nodes, one key\n");
    let mut table = Table::new(&[
        "tier",
        "times its limit",
        "offered/s",
        "commands/s",
        "commands per decision",
        "admitted / rate x time",
        "excess",
    ]);
    for row in &results.nodes {
        table.push(vec![
            format!("{:?}", row.cell.tier),
            row.cell.times.to_string(),
            grouped(row.offered_per_s as u32),
            grouped(row.commands_per_s as u32),
            format!("{:.4}", row.commands_per_decision),
            format!("{:.4}", row.admitted_share),
            short(Some(row.excess)),
        ]);
    }
    table.print();
}
