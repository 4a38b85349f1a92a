//! Settings files: strict YAML, with the place of every error.

use tidegate::policy::{Leaf, LeafValue, Step, leaves};

use super::table::{self, SETTINGS};
use super::{Chosen, Origin, is_name, meant};

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
    let upstream = match &*leaf.steps {
        [first, second, name, rest @ ..] if first.key == "gateway" && second.key == "upstreams" => {
            Some((name, rest))
        }
        _ => None,
    };
    if let Some((Step { key, at }, _)) = upstream
        && !is_name(key)
    {
        return Err(format!(
            "{at}: expected a name of letters, digits, - and _, found {key:?} (at {path})"
        ));
    }
    let setting = match upstream {
        Some((_, rest)) => table::find_of_upstream(&self::path(rest)),
        None => table::find(&path),
    };
    let Some(setting) = setting else { return Err(unknown(leaf)) };
    let read = match &leaf.value {
        // An empty value leaves the default.
        None => return Ok(()),
        Some(LeafValue::Text(text)) => setting.kind.read(text),
        Some(LeafValue::List(texts)) => setting.kind.read_list(texts.clone()),
    };
    match read {
        Ok(value) => {
            let origin = Origin::File(leaf.at.clone());
            match upstream {
                Some((name, _)) => {
                    chosen.set_of_upstream(name.key.clone(), setting, value, origin);
                }
                None => chosen.set(setting, value, origin),
            }
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
        let is_upstream = before == "gateway.upstreams";
        if is_upstream {
            continue;
        }
        // The table has a placeholder instead of the upstream's name.
        let before = match leaf.steps[..depth].get(2) {
            Some(name) if before.starts_with(table::UPSTREAMS) => {
                before.replacen(&format!(".{}", name.key), ".NAME", 1)
            }
            _ => before,
        };
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
