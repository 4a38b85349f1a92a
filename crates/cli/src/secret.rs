//! Secrets, each in the first line of a file of its own.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::policy::EnforceSecret;

use crate::settings::table;

/// The first line of a file.
pub(crate) fn first_line(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{} has nothing in its first line", file.display())),
    }
}

/// The secret of `policy.enforce_secret_file`, if there is one.
pub(crate) fn enforce_secret(file: Option<&Path>) -> Result<Option<EnforceSecret>, String> {
    let Some(file) = file else { return Ok(None) };
    let secret = EnforceSecret::new(&first_line(file)?);
    secret.map(Some).ok_or_else(|| {
        let (file, least) = (file.display(), EnforceSecret::MIN_BYTES);
        format!("the first line of {file} has fewer than {least} bytes: choose a longer secret")
    })
}

/// The same for a command without settings: the file of its flag, or of the daemon's variable.
pub(crate) fn enforce_secret_of(flag: Option<&PathBuf>) -> Result<Option<EnforceSecret>, String> {
    let setting = table::find("policy.enforce_secret_file");
    let variable = setting.and_then(|setting| std::env::var_os(setting.variable()));
    let file = flag.cloned().or_else(|| variable.map(PathBuf::from));
    enforce_secret(file.as_deref())
}
