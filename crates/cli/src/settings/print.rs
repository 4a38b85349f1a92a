//! `--print-config`: the settings in force, as a settings file with the source of each.

use std::fmt::Write as _;

use super::Chosen;
use super::table::SETTINGS;

impl Chosen {
    /// A settings file with the same values, without passwords.
    pub(crate) fn in_yaml(&self) -> String {
        let mut text = String::from("# Settings in force. Passwords are left out.\n");
        let mut open: Vec<&str> = Vec::new();
        for setting in SETTINGS {
            let mut steps: Vec<&str> = setting.path.split('.').collect();
            let Some(name) = steps.pop() else { continue };
            let shared = open.iter().zip(&steps).take_while(|(one, other)| one == other).count();
            open.truncate(shared);
            for step in &steps[shared..] {
                let _ = writeln!(text, "{}{step}:", "  ".repeat(open.len()));
                open.push(step);
            }
            let _ = writeln!(text, "{}# {}", "  ".repeat(open.len()), setting.about);
            let value = self.value(setting.path);
            let value = value.map_or("null".into(), |value| value.in_yaml(setting.kind));
            let _ = write!(text, "{}{name}: {value}", "  ".repeat(open.len()));
            if let Some(origin) = self.origin(setting.path) {
                let _ = write!(text, "  # from {origin}");
            }
            text.push('\n');
        }
        text
    }
}
