//! Lines over time as a picture (SVG).

use std::fmt::Write;

const WIDTH: u64 = 860;
const LEFT: u64 = 60;
const PANEL: u64 = 170;
const GAP: u64 = 46;
const LEGEND: u64 = 20;
/// Width of one entry of the legend, and how many stand in one row.
const ENTRY: u64 = 215;
const IN_A_ROW: usize = 4;
const COLOURS: [&str; 7] =
    ["#9a9a9a", "#b58900", "#6c71c4", "#d33682", "#2aa198", "#0b5cad", "#859900"];

/// Panels below each other, with the same lines in each and one legend.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Names of the lines, each with the number of its colour.
    pub lines: Vec<(String, usize)>,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// What stands at the right end of the horizontal axis.
    pub end: String,
}

/// A part of a [`Chart`].
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// What is drawn.
    pub title: String,
    /// The value at full height. Higher values are drawn there.
    pub scale: u64,
    /// The values of each line, from left to right.
    pub values: Vec<Vec<u64>>,
}

impl Chart {
    /// The picture.
    pub fn svg(&self) -> String {
        let rows = self.lines.len().div_ceil(IN_A_ROW) as u64;
        let top = LEGEND + rows * LEGEND;
        let height = top + self.panels.len() as u64 * (PANEL + GAP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
            LEFT + WIDTH + 20
        );
        for (index, (name, colour)) in self.lines.iter().enumerate() {
            let x = LEFT + ENTRY * (index % IN_A_ROW) as u64;
            let y = 12 + LEGEND * (index / IN_A_ROW) as u64;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"4\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"{}\">{name}</text>",
                self::colour(*colour),
                x + 20,
                y + 7,
            );
        }
        for (index, panel) in self.panels.iter().enumerate() {
            self.panel(&mut svg, top + index as u64 * (PANEL + GAP), panel);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn panel(&self, svg: &mut String, top: u64, panel: &Panel) {
        let scale = panel.scale.max(1);
        let bottom = top + PANEL;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{}</text>\n\
             <path d=\"M{LEFT} {} V{bottom} H{}\" fill=\"none\" stroke=\"#444444\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{scale}</text>\n\
             <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            top + 8,
            panel.title,
            top + 16,
            LEFT + WIDTH,
            LEFT - 6,
            top + 26,
            LEFT - 6,
            LEFT + WIDTH,
            bottom + 16,
            self.end,
        );
        for ((_, colour), values) in self.lines.iter().zip(&panel.values) {
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
                self::colour(*colour),
                points.join(" ")
            );
        }
    }
}

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_value_is_drawn_at_the_top_and_zero_at_the_bottom() {
        let panel = Panel { title: "goodput".into(), scale: 100, values: vec![vec![0, 50, 900]] };
        let chart =
            Chart { lines: vec![("one".into(), 0)], panels: vec![panel], end: "3 s".into() };
        let svg = chart.svg();
        let (top, bottom) = (LEGEND * 2 + 20, LEGEND * 2 + PANEL);
        let middle = (top + bottom).div_ceil(2);
        let points = format!("points=\"60,{bottom} 490,{middle} 920,{top}\"");
        assert!(svg.contains(&points), "{points} in {svg}");
    }
}
