//! The chart as SVG.

use std::fmt::Write;

use tidegate_sim::overload::Scenario;

use super::{Metric, Played};

const WIDTH: u64 = 860;
const LEFT: u64 = 60;
const PANEL: u64 = 170;
const GAP: u64 = 46;
const TOP: u64 = 40;
const COLOURS: [&str; 7] =
    ["#9a9a9a", "#b58900", "#6c71c4", "#d33682", "#2aa198", "#0b5cad", "#859900"];

/// Goodput, latency and limit over time, one line per limiter.
pub(super) fn draw(scenario: &Scenario, played: &[Played]) -> String {
    let metrics = [Metric::Goodput, Metric::P99, Metric::Limit];
    let height = TOP + metrics.len() as u64 * (PANEL + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        LEFT + WIDTH + 20
    );
    for (index, one) in played.iter().enumerate() {
        let x = LEFT + 120 * index as u64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"12\" width=\"14\" height=\"4\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"19\">{}</text>",
            colour(one),
            x + 20,
            one.contender.as_str()
        );
    }
    for (index, metric) in metrics.into_iter().enumerate() {
        panel(&mut svg, TOP + index as u64 * (PANEL + GAP), metric, scenario, played);
    }
    svg.push_str("</svg>\n");
    svg
}

fn colour(played: &Played) -> &'static str {
    COLOURS[played.contender as usize % COLOURS.len()]
}

fn panel(svg: &mut String, top: u64, metric: Metric, scenario: &Scenario, played: &[Played]) {
    let lines: Vec<Vec<u64>> = played.iter().map(|one| metric.values(&one.report)).collect();
    let highest = lines.iter().flatten().copied().max().unwrap_or(0);
    let scale = metric.scale(scenario, highest).max(1);
    let title = metric.title().split(" (").next().unwrap_or_default();
    let bottom = top + 16 + PANEL - 16;
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{title}</text>\n\
         <path d=\"M{LEFT} {} V{bottom} H{}\" fill=\"none\" stroke=\"#444444\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{scale}</text>\n\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} s</text>",
        top + 8,
        top + 16,
        LEFT + WIDTH,
        LEFT - 6,
        top + 26,
        LEFT - 6,
        LEFT + WIDTH,
        bottom + 16,
        lines.first().map_or(0, Vec::len),
    );
    for (one, values) in played.iter().zip(&lines) {
        let last = values.len().saturating_sub(1).max(1) as u64;
        let points: Vec<String> = (0_u64..)
            .zip(values)
            .map(|(second, value)| {
                let y = bottom - (*value).min(scale) * (PANEL - 20) / scale;
                format!("{},{y}", LEFT + second * WIDTH / last)
            })
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" points=\"{}\"/>",
            colour(one),
            points.join(" ")
        );
    }
}
