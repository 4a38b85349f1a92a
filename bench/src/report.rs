//! Tables for people, JSON for programs.

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::growth::Growth;
use crate::row::{Cell, Row, Rows};
use crate::targets::{Bound, Target};
use crate::traffic::Access;

/// One table per way of choosing keys. `/ floor` is the time as a multiple of the floor's, and
/// `governor /` the speed as a multiple of governor's.
pub fn speed(rows: &Rows, keys: u32) {
    for &access in Access::over(keys) {
        let cell = Cell::single(access);
        let here: Vec<&Row> =
            rows.0.iter().filter(|row| row.keys == keys && row.is(cell)).collect();
        if here.is_empty() {
            continue;
        }
        let plural = if keys == 1 { "key" } else { "keys" };
        println!("\n### {} {plural}, {}\n", grouped(keys), access.as_str());
        let mut table = Table::new(&[
            "impl",
            "ns",
            "min..max",
            "/ floor",
            "governor /",
            "isolated ns",
            "2T ns",
            "2T M/s",
            "2T / governor",
            "B/key",
            "peak B/key",
            "insert ns",
            "worst insert us",
        ]);
        here.iter().for_each(|row| table.push(speed_line(rows, row)));
        table.print();
    }
}

fn speed_line(rows: &Rows, row: &Row) -> Vec<String> {
    let find = |name: &str, cell| rows.find(name, row.keys, cell);
    let (single, double) = (Cell::single(row.access), Cell::double(row.access));
    let ns = row.ns_per_decision;
    // The first insert includes the setup, and with one key there is no other insert.
    let many = |value: f64| (row.keys > 1).then_some(value);
    let isolated = find(&row.name, Cell::isolated(row.access)).map(|row| row.ns_per_decision);
    let shared = find(&row.name, double);
    let throughput = shared.map(|row| row.mdecisions_per_s);
    let peer = find("governor_dashmap", double).map(|row| row.mdecisions_per_s);
    let floor = find("slot_gcra_thp", single).map(|floor| ns / floor.ns_per_decision);
    let governor = find("governor_dashmap", single).map(|peer| peer.ns_per_decision / ns);
    vec![
        row.name.clone(),
        short(Some(ns)),
        format!("{}..{}", short(Some(row.ns_min)), short(Some(row.ns_max))),
        ratio(floor),
        ratio(governor),
        short(isolated),
        short(shared.map(|row| row.ns_per_decision)),
        short(throughput),
        ratio(throughput.zip(peer).map(|(ours, peer)| ours / peer)),
        short(row.bytes_per_key),
        short(row.peak_bytes_per_key),
        short(many(row.insert_ns)),
        short(many(row.worst_insert_us)),
    ]
}

/// Bytes per key on the way up, and the pauses.
pub fn growth(grown: &[Growth]) {
    const SHOWN: [u32; 8] = [1, 2, 3, 5, 8, 10, 12, 15];
    let Some(first) = grown.first() else { return };
    println!("\n### growth, bytes per key at so many million keys\n");
    println!("Memory of the machine was touched before, so a pause is the table's own.\n");
    let shown: Vec<u32> =
        SHOWN.into_iter().filter(|million| million * 1_000_000 <= first.keys).collect();
    let mut headers = vec!["impl".to_owned()];
    headers.extend(shown.iter().map(|million| format!("{million}M")));
    let rest = ["most", "peak / resident", "insert ns", "worst cpu us", "worst wall us"];
    headers.extend(rest.map(str::to_owned));
    let mut table = Table { lines: vec![headers] };
    for growth in grown {
        let at = |million: &u32| {
            let point = growth.checkpoints.iter().find(|point| point.keys == million * 1_000_000);
            short(point.map(|point| point.bytes_per_key))
        };
        let mut line = vec![growth.name.clone()];
        line.extend(shown.iter().map(at));
        line.push(short(Some(growth.max_bytes_per_key)));
        line.push(ratio(Some(growth.peak_ratio)));
        line.push(short(Some(growth.insert_ns)));
        line.push(short(Some(growth.worst_insert_cpu_us)));
        line.push(short(Some(growth.worst_insert_wall_us)));
        table.push(line);
    }
    table.print();
}

pub fn targets(targets: &[Target], keys: u32) {
    println!("\n### targets, at {} keys where not said otherwise\n", grouped(keys));
    if keys != 10_000_000 {
        println!("They are meant for 10,000,000 keys: at another count they only indicate.\n");
    }
    target_table(targets);
}

pub fn plain_targets(targets: &[Target]) {
    println!("\n### targets\n");
    target_table(targets);
}

fn target_table(targets: &[Target]) {
    let mut table = Table::new(&["target", "bound", "value", ""]);
    for target in targets {
        let bound = match target.bound {
            Bound::AtMost(most) => format!("<= {most}"),
            Bound::AtLeast(least) => format!(">= {least}"),
        };
        let verdict = target.met.map_or("not measured", |met| if met { "met" } else { "missed" });
        table.push(vec![target.what.clone(), bound, ratio(target.value), verdict.to_owned()]);
    }
    table.print();
}

/// Writes `results` and prints the path.
pub fn write<T: Serialize + ?Sized>(path: &Path, results: &T) -> Result<(), Failure> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, serde_json::to_string_pretty(results)? + "\n")?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// A Markdown table with aligned columns.
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headers: &[&str]) -> Self {
        Self { lines: vec![headers.iter().map(|&header| header.to_owned()).collect()] }
    }

    pub fn push(&mut self, line: Vec<String>) {
        self.lines.push(line);
    }

    /// The first column to the left, the others to the right.
    pub fn print(&self) {
        let widths: Vec<usize> = (0..self.lines[0].len())
            .map(|column| self.lines.iter().map(|line| line[column].len()).max().unwrap_or(0))
            .collect();
        for (number, line) in self.lines.iter().enumerate() {
            let cells = line.iter().zip(&widths).enumerate();
            let cells: Vec<String> = cells
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            println!("| {} |", cells.join(" | "));
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
                println!("| {} |", rules.join(" | "));
            }
        }
    }
}

/// A value with three digits.
pub fn short(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

pub fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

/// `10,000,000`.
pub fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
