//! Secrets: the first line of a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate::policy::EnforceSecret;

use crate::settings::table;

const SETTING: &str = "policy.enforce_secret_file";

/// The first line of the file that a setting names.
pub(crate) fn first_line(setting: &str, file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|error| unreadable(setting, file, &error))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{setting}: the first line of {} is empty", file.display())),
    }
}

/// The error for a file that cannot be read: setting, name, reason, and the folder that a relative
/// name was looked up in.
pub(crate) fn unreadable(setting: &str, file: &Path, error: &io::Error) -> String {
    let folder = std::env::current_dir().ok().filter(|_| file.is_relative());
    let within = folder.map_or(String::new(), |it| format!(" (in {})", it.display()));
    format!("{setting}: cannot read {}{within}: {error}", file.display())
}

/// The secret of `policy.enforce_secret_file`, if it is set.
pub(crate) fn enforce_secret(file: Option<&Path>) -> Result<Option<EnforceSecret>, String> {
    let Some(file) = file else { return Ok(None) };
    let secret = EnforceSecret::new(&first_line(SETTING, file)?);
    secret.map(Some).ok_or_else(|| {
        let (file, least) = (file.display(), EnforceSecret::MIN_BYTES);
        format!(
            "{SETTING}: the first line of {file} has fewer than {least} bytes; choose a longer secret"
        )
    })
}

/// Like [`enforce_secret`], for a command without settings: from its flag, or from the daemon's
/// environment variable.
pub(crate) fn enforce_secret_of(flag: Option<&PathBuf>) -> Result<Option<EnforceSecret>, String> {
    let setting = table::find(SETTING);
    let variable = setting.and_then(|setting| std::env::var_os(setting.variable()));
    let file = flag.cloned().or_else(|| variable.map(PathBuf::from));
    enforce_secret(file.as_deref())
}
