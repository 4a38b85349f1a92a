//! `--print-config`: the settings in force, as a settings file with the source of each.

use std::fmt::Write as _;

use super::table::{SETTINGS, Setting, UPSTREAMS};
use super::{Chosen, Origin, Value};

impl Chosen {
    /// A settings file with the same values, without passwords.
    pub(crate) fn in_yaml(&self) -> String {
        let mut text = String::from("# Settings in force. Passwords are left out.\n");
        let mut open: Vec<String> = Vec::new();
        for Line { path, setting, value, origin } in self.lines() {
            let mut steps: Vec<String> = path.split('.').map(ToOwned::to_owned).collect();
            let Some(name) = steps.pop() else { continue };
            let shared = open.iter().zip(&steps).take_while(|(one, other)| one == other).count();
            open.truncate(shared);
            for step in &steps[shared..] {
                let _ = writeln!(text, "{}{step}:", "  ".repeat(open.len()));
                open.push(step.clone());
            }
            let _ = writeln!(text, "{}# {}", "  ".repeat(open.len()), setting.about);
            let value = value.map_or("null".into(), |value| value.in_yaml(setting.kind));
            let _ = write!(text, "{}{name}: {value}", "  ".repeat(open.len()));
            if let Some(origin) = origin {
                let _ = write!(text, "  # from {origin}");
            }
            text.push('\n');
        }
        text
    }

    /// All settings with their paths, including those set for upstreams.
    fn lines(&self) -> Vec<Line<'_>> {
        let mut lines = Vec::new();
        let is_of_upstream = |setting: &&Setting| setting.of_upstream().is_some();
        for setting in SETTINGS.iter().take_while(|it| !is_of_upstream(it)) {
            lines.push(self.line(setting));
        }
        for (name, values) in &self.upstreams {
            for setting in SETTINGS {
                if let (Some(rest), Some((value, origin))) =
                    (setting.of_upstream(), values.get(setting.path))
                {
                    let path = format!("{UPSTREAMS}{name}.{rest}");
                    let (value, origin) = (Some(value.clone()), Some(origin));
                    lines.push(Line { path, setting, value, origin });
                }
            }
        }
        let after = SETTINGS.iter().skip_while(|it| !is_of_upstream(it));
        for setting in after.filter(|it| !is_of_upstream(it)) {
            lines.push(self.line(setting));
        }
        lines
    }

    fn line(&self, setting: &'static Setting) -> Line<'_> {
        let (value, origin) = (self.value(setting.path), self.origin(setting.path));
        Line { path: setting.path.to_owned(), setting, value, origin }
    }
}

/// A setting with its value and its source.
struct Line<'a> {
    path: String,
    setting: &'static Setting,
    value: Option<Value>,
    origin: Option<&'a Origin>,
}
