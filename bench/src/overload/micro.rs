//! Costs of single operations, from the benchmarks that measure them.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Targets of `cargo xtask bench concurrency` and `… tower`, if these were run on this machine.
pub fn table(folder: &Path) -> String {
    let mut text = "| | bound | measured | |\n|---|---|---|---|\n".to_owned();
    for file in ["concurrency.json", "tower.json"] {
        let path = folder.with_file_name(file);
        let read = std::fs::read(path).ok();
        let json: Option<Value> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let targets = json.as_ref().and_then(|json| json["targets"].as_array());
        for target in targets.into_iter().flatten() {
            let what = target["what"].as_str().unwrap_or_default();
            if file == "tower.json" && !what.contains("ConcurrencyLimit") {
                continue;
            }
            let bound = target["bound"]["at_most"].as_f64();
            let value = target["value"].as_f64();
            let (bound, value) = (bound.unwrap_or(f64::NAN), value.unwrap_or(f64::NAN));
            let result = if value <= bound { "met" } else { "**missed**" };
            let _ = writeln!(text, "| {what} | at most {bound} | {value:.2} | {result} |");
        }
    }
    text
}
