//! Client libraries of other projects, which the tests run unmodified against the daemon.

use std::fs;
use std::path::{Path, PathBuf};

use crate::step::{Failure, Step, root};
use crate::test::{Installed, python_environment};

/// Installs all clients, each only once.
pub(crate) fn install() -> impl Iterator<Item = Installed> {
    let python = |program, list| move || python(program, list);
    [
        ("TIDEGATE_REDIS_PY", "redis-py", Box::new(python("python", "redis.txt")) as Box<Install>),
        ("TIDEGATE_SCHEMATHESIS", "schemathesis", Box::new(python("st", "schemathesis.txt"))),
        ("TIDEGATE_IOREDIS", "ioredis", Box::new(node)),
        ("TIDEGATE_GO_REDIS", "go-redis", Box::new(go)),
    ]
    .into_iter()
    .map(|(variable, name, install)| (variable, name, install()))
}

type Install = dyn Fn() -> Result<PathBuf, Failure>;

/// A program in an environment with the packages of a list in `tests/clients/python`.
fn python(program: &str, list: &str) -> Result<PathBuf, Failure> {
    let requirements = read(&root().join("tests/clients/python").join(list))?;
    let environment = root().join("target/clients").join(list.trim_end_matches(".txt"));
    let program = environment.join("bin").join(program);
    let is_installed = fs::read_to_string(environment.join("requirements.txt"))
        .is_ok_and(|installed| installed == requirements && program.is_file());
    if !is_installed {
        python_environment(&environment, &requirements)?;
    }
    Ok(program)
}

/// The manifest of ioredis among the modules of `tests/clients/node`.
fn node() -> Result<PathBuf, Failure> {
    let (from, to) = (root().join("tests/clients/node"), root().join("target/clients/node"));
    let module = to.join("node_modules/ioredis/package.json");
    let lock = read(&from.join("package-lock.json"))?;
    if read(&to.join("package-lock.json")).is_ok_and(|it| it == lock) && module.is_file() {
        return Ok(module);
    }
    let failed = |error: std::io::Error| Failure::new(error.to_string());
    fs::create_dir_all(&to).map_err(failed)?;
    for name in ["package.json", "package-lock.json"] {
        fs::copy(from.join(name), to.join(name)).map_err(failed)?;
    }
    let folder = to.display().to_string();
    Step::new("npm", "ci --ignore-scripts --no-audit --no-fund --prefix").with(&[folder]).run()?;
    Ok(module)
}

/// Builds the client of `tests/clients/go`.
fn go() -> Result<PathBuf, Failure> {
    let program = root().join("target/clients/go-redis");
    if !program.is_file() {
        let output = program.display().to_string();
        Step::new("go", "build -C tests/clients/go -o").with(&[output, ".".into()]).run()?;
    }
    Ok(program)
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::new(format!("cannot read {}: {error}", path.display()));
    fs::read_to_string(path).map_err(failed)
}
