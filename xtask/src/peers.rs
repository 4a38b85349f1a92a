//! Programs of other projects, built into `target/peers` for benchmarks and comparisons.

use std::env;
use std::path::{Path, PathBuf};

use crate::step::{Failure, Step, root};

/// Pinned by commit, because the project has no releases.
const RATELIMIT: &str =
    "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36";
const THROTTLECRAB: &str = "throttlecrab-server@0.4.40";
/// Netflix's concurrency-limits, and its logging library.
const NETFLIX: [&str; 2] =
    ["com.netflix.concurrency-limits:concurrency-limits-core:0.5.4", "org.slf4j:slf4j-api:1.7.36"];
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
        // One job at a time, because other work shares this machine.
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

/// The folder of a small server that uses Netflix's concurrency-limits: the one that
/// `TIDEGATE_OVERLOAD_NETFLIX` names, or one that is compiled here with the library from Maven.
pub(crate) fn netflix() -> Result<PathBuf, Failure> {
    const SOURCE: &str = "bench/netflix/Server.java";
    if let Some(named) = env::var_os("TIDEGATE_OVERLOAD_NETFLIX") {
        return Ok(named.into());
    }
    let folder = root().join(FOLDER).join("netflix");
    if is_current(&folder.join("Server.class"), SOURCE) {
        return Ok(folder);
    }
    let has = |program| Step::new(program, "-version").succeeds_quietly();
    if !has("javac") || !Step::new("mvn", "--version").succeeds_quietly() {
        return Err(Failure::new(
            "a JDK or Maven is missing, without which the server with Netflix's concurrency-limits \
             does not build: install default-jdk-headless and maven",
        ));
    }
    let name = folder.display().to_string();
    for artifact in NETFLIX {
        Step::new("mvn", "--batch-mode --quiet dependency:copy")
            .with(&[format!("-Dartifact={artifact}"), format!("-DoutputDirectory={name}")])
            .run()?;
    }
    Step::new("javac", "-cp")
        .with(&[format!("{name}/*"), "-d".into(), name, SOURCE.into()])
        .run()?;
    Ok(folder)
}

/// A small server that uses failsafe-go: the one that `TIDEGATE_OVERLOAD_FAILSAFE` names, or one
/// that Go builds here.
pub(crate) fn failsafe() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os("TIDEGATE_OVERLOAD_FAILSAFE") {
        return Ok(named.into());
    }
    let program = root().join(FOLDER).join("bin/overload-failsafe");
    if is_current(&program, "bench/failsafe/main.go") {
        return Ok(program);
    }
    if !Step::new("go", "version").succeeds_quietly() {
        return Err(Failure::new(
            "Go is missing, which builds the server with failsafe-go: install it, or name a program \
             that is built already in TIDEGATE_OVERLOAD_FAILSAFE",
        ));
    }
    let output = program.display().to_string();
    // One job at a time, because other work shares this machine.
    Step::new("go", "build -C bench/failsafe -p 1 -o").with(&[output, ".".into()]).run()?;
    Ok(program)
}

/// Whether a program is newer than its source.
fn is_current(program: &Path, source: &str) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    changed(program).is_some_and(|built| Some(built) > changed(&root().join(source)))
}
