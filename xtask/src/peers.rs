//! Programs of other projects, built into `target/peers` for benchmarks and comparisons.

use std::env;
use std::path::PathBuf;

use crate::step::{Failure, Step, root};

/// Pinned by commit, because the project has no releases.
const RATELIMIT: &str =
    "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36";
const THROTTLECRAB: &str = "throttlecrab-server@0.4.40";
const FOLDER: &str = "target/peers";

/// envoyproxy/ratelimit: the program that `TIDEGATE_ENVOY_RATELIMIT` names, or a build of its
/// module by Go.
pub(crate) fn ratelimit() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os("TIDEGATE_ENVOY_RATELIMIT") {
        return Ok(named.into());
    }
    let program = root().join(FOLDER).join("bin/service_cmd");
    if !program.is_file() {
        if !Step::new("go", "version").succeeds_quietly() {
            return Err(Failure::new(
                "Go is missing, which builds envoyproxy/ratelimit: install it, or name a program \
                 that is built already in TIDEGATE_ENVOY_RATELIMIT",
            ));
        }
        let folder = root().join(FOLDER).join("bin").display().to_string();
        // One job at a time, to leave the processor to other work.
        Step::new("go", &format!("install -p 1 {RATELIMIT}")).env("GOBIN", &folder).run()?;
    }
    Ok(program)
}

/// throttlecrab: the program that `TIDEGATE_THROTTLECRAB` names, or a build from the registry.
pub(crate) fn throttlecrab() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os("TIDEGATE_THROTTLECRAB") {
        return Ok(named.into());
    }
    let program = root().join(FOLDER).join("bin/throttlecrab-server");
    if !program.is_file() {
        if !Step::new("protoc", "--version").succeeds_quietly() {
            return Err(Failure::new(
                "protoc is missing, without which throttlecrab-server does not build: install \
                 protobuf-compiler",
            ));
        }
        Step::cargo(&format!("install {THROTTLECRAB} --locked --root {FOLDER}")).run()?;
    }
    Ok(program)
}

/// limitador: only the program that `TIDEGATE_LIMITADOR` names, because its server is in no
/// registry.
pub(crate) fn limitador() -> Result<PathBuf, Failure> {
    env::var_os("TIDEGATE_LIMITADOR").map(PathBuf::from).ok_or_else(|| {
        Failure::new(
            "no registry has limitador-server: build it from its repository, and name the program \
             in TIDEGATE_LIMITADOR",
        )
    })
}
