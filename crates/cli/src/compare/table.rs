//! Figures in columns.

use std::fmt::Write;

use tidegate_core::Span;
use tidegate_sim::{Comparison, Figures, Row, spell};

use crate::terminal::Terminal;

pub(super) fn table(comparison: &Comparison, terminal: Terminal) -> String {
    let period = spell(comparison.setup.rate().per);
    let mut out = String::new();
    let heading = format!(
        "  {:<14}{:>10}{:>8}{:>10}{:>8}{:>11}{:>8}{:>8}",
        "algorithm",
        "admitted",
        "denied",
        format!("max/{period} "),
        "max/2s ",
        "delay max",
        "mean",
        "bytes"
    );
    let _ = writeln!(out, "{}", terminal.faint(&heading));
    for row in &comparison.rows {
        line(&mut out, row, comparison, terminal);
    }
    out
}

fn line(out: &mut String, row: &Row, comparison: &Comparison, terminal: Terminal) {
    let name = row.algorithm;
    let figures = match &row.outcome {
        Ok(simulated) => &simulated.figures,
        Err(why) => {
            let text = terminal.wrap(&" ".repeat(18), &format!("refused: {why}"));
            let _ = write!(out, "  {name:<16}{}", text.trim_start());
            return;
        }
    };
    let Figures { admitted, denied, max_delay, mean_delay, state_bytes, .. } = *figures;
    let rate = comparison.setup.rate();
    let marked = |most: u64, within: Span, width: usize| {
        let above = most > rate.count && within <= rate.per;
        let text = format!("{:>width$}", format!("{most}{}", if above { '*' } else { ' ' }));
        if above { terminal.warning(&text) } else { text }
    };
    let _ = writeln!(
        out,
        "  {name:<14}{admitted:>10}{denied:>8}{}{}{:>11}{:>8}{state_bytes:>8}",
        marked(figures.max_in_window, rate.per, 10),
        marked(figures.max_in_2s, Span::from_secs(2), 8),
        spell(max_delay),
        spell(mean_delay),
    );
}
