//! One process per measurement.

use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

use crate::Failure;

/// Measures in a separate process, so that no table inherits the heap of another, and a crash costs
/// one row. The child answers with one line of JSON.
pub fn in_child<T: DeserializeOwned>(arguments: &[&str]) -> Result<T, Failure> {
    let output =
        Command::new(std::env::current_exe()?).args(arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", arguments.join(" "), output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
