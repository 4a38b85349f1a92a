//! Width and colour of the terminal.

use std::env;
use std::io::{self, IsTerminal};

use clap::ColorChoice;
use clap::builder::StyledStr;

/// The terminal that text is written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    pub(crate) width: usize,
    pub(crate) colour: bool,
}

impl Terminal {
    /// Standard output: as wide as its terminal within limits, 80 columns if it is no terminal.
    pub(crate) fn of_stdout(choice: ColorChoice) -> Self {
        let width = terminal_size::terminal_size_of(io::stdout())
            .map_or(80, |(width, _)| usize::from(width.0).clamp(76, 160));
        let colour = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
                io::stdout().is_terminal() && !unwanted && !dumb
            }
        };
        Self { width, colour }
    }

    pub(crate) fn render(self, text: &StyledStr) -> String {
        if self.colour { text.ansi().to_string() } else { text.to_string() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(crate) fn bars(self, text: &str) -> String {
        self.paint("36", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// `text` wrapped into lines with `indent`, each with a line end.
    pub(crate) fn wrap(self, indent: &str, text: &str) -> String {
        let mut lines = String::new();
        let mut used = 0;
        for word in text.split_whitespace() {
            let length = word.chars().count();
            if used > 0 && used + 1 + length <= self.width {
                lines.push(' ');
                used += 1 + length;
            } else {
                lines.push_str(if used > 0 { "\n" } else { "" });
                lines.push_str(indent);
                used = indent.len() + length;
            }
            lines.push_str(word);
        }
        lines.push('\n');
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_behind_its_indent() {
        let narrow = Terminal { width: 11, colour: false };
        assert_eq!(narrow.wrap("  ", "one two three four"), "  one two\n  three\n  four\n");
        assert_eq!(narrow.wrap("  ", "incomprehensible it is"), "  incomprehensible\n  it is\n");
    }

    #[test]
    fn without_colour_nothing_is_painted() {
        assert_eq!(Terminal { width: 80, colour: false }.bold("x"), "x");
        assert_eq!(Terminal { width: 80, colour: true }.bold("x"), "\x1b[1mx\x1b[0m");
    }
}
