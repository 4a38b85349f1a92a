//! Settings files: strict YAML, with the place of every error.

use tidegate::policy::{Leaf, LeafValue, Step, leaves};

use super::table::{self, SETTINGS};
use super::{Chosen, Origin, meant};

/// Reads a file. All errors go to `wrong`.
pub(super) fn read(name: &str, text: &str, chosen: &mut Chosen, wrong: &mut Vec<String>) {
    let found = match leaves(name, text) {
        Ok(found) => found,
        Err(why) => return wrong.push(why),
    };
    for leaf in found {
        if let Err(why) = choose(&leaf, chosen) {
            wrong.push(why);
        }
    }
}

fn choose(leaf: &Leaf, chosen: &mut Chosen) -> Result<(), String> {
    let path = path(&leaf.steps);
    let Some(setting) = table::find(&path) else { return Err(unknown(leaf)) };
    let read = match &leaf.value {
        // An empty value leaves the default.
        None => return Ok(()),
        Some(LeafValue::Text(text)) => setting.kind.read(text),
        Some(LeafValue::List(texts)) => setting.kind.read_list(texts.clone()),
    };
    match read {
        Ok(value) => {
            chosen.set(setting, value, Origin::File(leaf.at.clone()));
            Ok(())
        }
        Err(expected) => Err(format!("{}: expected {expected} (at {path})", leaf.at)),
    }
}

fn path(steps: &[Step]) -> String {
    steps.iter().map(|step| &*step.key).collect::<Vec<_>>().join(".")
}

/// The error for an unknown key, with the nearest known one.
fn unknown(leaf: &Leaf) -> String {
    for (depth, step) in leaf.steps.iter().enumerate() {
        let before = path(&leaf.steps[..depth]);
        let within = if before.is_empty() { String::new() } else { format!("{before}.") };
        let mut known: Vec<&str> = SETTINGS
            .iter()
            .filter_map(|setting| setting.path.strip_prefix(&within)?.split('.').next())
            .collect();
        known.dedup();
        if known.contains(&&*step.key) {
            continue;
        }
        let advice = match (&*meant(&step.key, &known), known.is_empty()) {
            ("", true) => format!("; {before} is a value, not a map"),
            ("", false) => format!("; expected one of {}", known.join(", ")),
            (advice, _) => advice.to_owned(),
        };
        let (at, key) = (&step.at, &step.key);
        return format!("{at}: unknown setting {key:?}{advice} (at {})", path(&leaf.steps));
    }
    format!("{}: {} is a map of settings, not a value", leaf.at, path(&leaf.steps))
}
