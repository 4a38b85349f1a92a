//! Plots of the experiments that change over time.

use tidegate_sim::overload::{Chart, Panel};

use super::cell::{Cell, Store};
use super::contender::Contender;
use super::page::peak_of;
use super::spec::Second;

/// Points of a line: more would not be visible.
const POINTS: usize = 120;

/// File names and pictures.
pub fn all(store: &Store) -> Vec<(&'static str, String)> {
    let contenders = |experiment: &str, contenders: &[Contender]| {
        let each = contenders.iter().map(|one| {
            (format!("{experiment}-{}", one.name()), one.title().to_owned(), *one as usize)
        });
        each.collect::<Vec<_>>()
    };
    let own = |experiment: &str| contenders(experiment, &[Contender::Tidegate]);
    let long = [Contender::Tidegate, Contender::Netflix, Contender::Envoy];
    let mut storm = contenders("E7", &[Contender::None, Contender::Tower, Contender::Tidegate]);
    storm.push(("E8-tidegate".to_owned(), "Tidegate, Tidegate's client".to_owned(), 4));
    [
        ("an-hour.svg", contenders("E3", &long), true),
        ("workers-fail.svg", own("E5"), true),
        ("slow-dependency.svg", own("E6"), true),
        ("retry-storm.svg", storm, false),
    ]
    .into_iter()
    .filter_map(|(file, cells, has_limit)| Some((file, chart(store, &cells, has_limit)?.svg())))
    .collect()
}

fn chart(store: &Store, cells: &[(String, String, usize)], has_limit: bool) -> Option<Chart> {
    let read = |(name, title, colour): &(String, String, usize)| {
        Some((store.read(name)?, title.clone(), *colour))
    };
    let cells: Vec<(Cell, String, usize)> = cells.iter().filter_map(read).collect();
    let longest = cells.iter().map(|(cell, ..)| cell.seconds.len()).max()?;
    let panel = |title: &str, value: &dyn Fn(&Second, f64) -> f64, full: u64| {
        let lines = cells.iter().map(|(cell, ..)| {
            let peak = peak_of(store, cell).unwrap_or(1.0);
            means(&cell.seconds, |second| value(second, peak))
        });
        let values: Vec<Vec<u64>> = lines.collect();
        let highest = values.iter().flatten().copied().max().unwrap_or(0);
        let scale = if full > 0 { full } else { highest };
        Panel { title: title.to_owned(), scale, values }
    };
    let deadline = cells.first().map_or(100, |(cell, ..)| cell.plan.load.deadline_ms);
    let goodput = |second: &Second, peak: f64| 100.0 * f64::from(second.served()) / peak;
    let p99 = |second: &Second, _| f64::from(second.p99_us) / 1e3;
    let limit = |second: &Second, _| f64::from(second.limit.unwrap_or(0));
    let mut panels = vec![
        panel("goodput, % of the peak", &goodput, 120),
        panel("p99 of admitted requests, ms", &p99, 3 * deadline),
    ];
    if has_limit {
        panels.push(panel("limit", &limit, 0));
    }
    let lines = cells.iter().map(|(_, title, colour)| (title.clone(), *colour)).collect();
    Some(Chart { lines, panels, end: format!("{longest} s") })
}

fn means(seconds: &[Second], value: impl Fn(&Second) -> f64) -> Vec<u64> {
    let each = seconds.len().div_ceil(POINTS).max(1);
    let mean = |part: &[Second]| part.iter().map(&value).sum::<f64>() / part.len() as f64;
    seconds.chunks(each).map(|part| mean(part).round() as u64).collect()
}
