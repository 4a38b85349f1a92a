//! The differences found, by kind, with a few examples of each.

use std::collections::BTreeMap;
use std::fmt;

use super::{Asked, Fields};

/// The first examples show the cause; later ones mostly follow from it.
const MOST_EXAMPLES: usize = 3;

/// The differences, and the number of answers compared.
#[derive(Debug, Default)]
pub struct Differences {
    compared: u64,
    held_up: u64,
    differing: u64,
    kinds: BTreeMap<String, Kind>,
}

#[derive(Debug, Default)]
struct Kind {
    count: u64,
    examples: Vec<String>,
}

impl Differences {
    /// Compares the two answers to a request.
    pub fn compare(&mut self, stage: &str, asked: &Asked, envoyproxy: &Fields, ours: &Fields) {
        self.compared += 1;
        let differences = envoyproxy.differences(ours);
        self.differing += u64::from(!differences.is_empty());
        for (name, envoyproxy, ours) in differences {
            let kind = self.kinds.entry(format!("{stage}: {}", general(name))).or_default();
            kind.count += 1;
            if kind.examples.len() < MOST_EXAMPLES {
                let number = self.compared + self.held_up;
                kind.examples.push(format!(
                    "{name}: envoyproxy {envoyproxy}, ours {ours}\n      question {number}: {asked}"
                ));
            }
        }
    }

    /// Counts a request whose answers cannot be compared because of their time.
    pub fn leave_out(&mut self) {
        self.held_up += 1;
    }

    /// Number of answers compared.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Whether all answers were equal.
    pub fn is_clean(&self) -> bool {
        self.kinds.is_empty() && self.compared() > 0
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} answers compared, {} differ; {} not compared, because a window ended meanwhile",
            self.compared, self.differing, self.held_up
        )?;
        for (name, kind) in &self.kinds {
            writeln!(f, "\n{} x {name}", kind.count)?;
            kind.examples.iter().try_for_each(|example| writeln!(f, "    {example}"))?;
        }
        Ok(())
    }
}

/// The name of a field without its indices in lists, so that fields of one kind are counted
/// together.
fn general(name: &str) -> String {
    let mut general = String::new();
    let mut inside = false;
    for letter in name.chars() {
        inside = (inside || letter == '[') && letter != ']';
        if !inside || letter == '[' {
            general.push(letter);
        }
    }
    general
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_one_kind_are_counted_together() {
        assert_eq!(general("statuses[12].current_limit.unit"), "statuses[].current_limit.unit");
        assert_eq!(general("body[0].a[1]"), "body[].a[]");
        assert_eq!(general("overall_code"), "overall_code");
    }
}
