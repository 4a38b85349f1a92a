//! Other programs with the same protocol, if the machine has them.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;

/// Valkey: the program that `TIDEGATE_VALKEY_SERVER` names, or else `valkey-server` of the path.
/// `cargo xtask test` installs it and sets the variable; without either, tests skip Valkey.
pub fn valkey_program() -> Option<PathBuf> {
    named("TIDEGATE_VALKEY_SERVER").or_else(|| on_path("valkey-server"))
}

/// The oldest Redis that is supported, which only `TIDEGATE_OLD_REDIS_SERVER` can name.
pub fn old_redis_program() -> Option<PathBuf> {
    named("TIDEGATE_OLD_REDIS_SERVER")
}

/// The daemon of an earlier release, which only `TIDEGATE_UPGRADE_FROM` can name.
pub fn earlier_program() -> Option<PathBuf> {
    named("TIDEGATE_UPGRADE_FROM")
}

/// Envoy: the program that `TIDEGATE_ENVOY` names, or else `envoy` of the path.
pub fn envoy_program() -> Option<PathBuf> {
    named("TIDEGATE_ENVOY").or_else(|| on_path("envoy"))
}

/// Chromium: the program named by `TIDEGATE_CHROMIUM`, or else `chromium` on the path.
pub fn chromium_program() -> Option<PathBuf> {
    named("TIDEGATE_CHROMIUM").or_else(|| on_path("chromium"))
}

/// A program that only this variable names. Without it, the test has to print that it was skipped.
pub fn by_variable(variable: &str) -> Option<PathBuf> {
    let found = named(variable);
    if found.is_none() {
        println!("!!! LEFT OUT: {variable} names no program; `cargo xtask test` installs it");
    }
    found
}

/// A program that comes with Debian, where services may be in a folder of their own.
///
/// # Panics
/// If it is not installed.
pub fn by_debian(program: &str) -> PathBuf {
    let service = PathBuf::from("/usr/sbin").join(program);
    let found = on_path(program).or_else(|| service.is_file().then_some(service));
    found.unwrap_or_else(|| panic!("install {program}, as `cargo xtask test` does"))
}

/// A program of this workspace, built with the running one: in the same folder, or in the folder
/// above for tests.
///
/// # Panics
/// If it is not there.
pub fn our_program(name: &str) -> PathBuf {
    let own = env::current_exe().expect("every process has a program");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let built = found.into_iter().find(|program| program.is_file());
    built.unwrap_or_else(|| panic!("build {name} first, as `cargo test --workspace` does"))
}

/// A variable that names no file is an error, not a missing program.
fn named(variable: &str) -> Option<PathBuf> {
    let program = PathBuf::from(env::var_os(variable).filter(|value| !value.is_empty())?);
    assert!(program.is_file(), "{variable} names {}, which is no file", program.display());
    Some(program)
}

fn on_path(program: impl AsRef<OsStr>) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    let program = program.as_ref();
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}
