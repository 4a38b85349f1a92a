//! A command of a task: printed, run from the root of the workspace, timed.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Prefixes of the variables that cargo sets for this program. Some build scripts run again when
/// these change, so passing them on would build half of the workspace twice: once for tasks, once
/// for commands that a developer runs.
const SET_BY_CARGO: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// A command that a task runs.
#[derive(Debug)]
pub(crate) struct Step {
    program: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Step {
    /// A command of `program`, with arguments split at spaces; no argument contains a space.
    pub(crate) fn new(program: &str, arguments: &str) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.split_whitespace().map(Into::into).collect(),
            variables: Vec::new(),
        }
    }

    pub(crate) fn cargo(arguments: &str) -> Self {
        Self::new("cargo", arguments)
    }

    /// Adds arguments unchanged.
    pub(crate) fn with(mut self, arguments: &[String]) -> Self {
        self.arguments.extend_from_slice(arguments);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Runs the command; any exit status but success is a failure.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let status = self.status()?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::new(format!("stopped, because this failed ({status}):\n  {self}")))
    }

    /// Runs the command, and returns its exit status to the caller.
    pub(crate) fn status(&self) -> Result<ExitStatus, Failure> {
        println!("\n$ {self}");
        self.command().status().map_err(|error| self.not_started(&error))
    }

    /// True if the command can be started and succeeds; its output is not shown.
    pub(crate) fn succeeds_quietly(&self) -> bool {
        let status = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(root()).stdin(Stdio::null());
        for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if SET_BY_CARGO.iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn not_started(&self, error: &std::io::Error) -> Failure {
        Failure::new(format!("could not start `{}`: {error}", self.program))
    }
}

impl fmt::Display for Step {
    /// The command line as a user would type it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}=\"{value}\" ")?;
        }
        write!(f, "{}", self.program)?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// Why a task stopped.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The steps that a task has passed, with their durations.
#[derive(Debug)]
pub(crate) struct Summary {
    task: String,
    passed: Vec<String>,
    started: Instant,
    /// Start of the current step.
    latest: Instant,
}

impl Summary {
    pub(crate) fn start(task: &str) -> Self {
        let started = now();
        Self { task: task.into(), passed: Vec::new(), started, latest: started }
    }

    /// Records a passed step and its duration, for the last line.
    pub(crate) fn passed(&mut self, what: impl fmt::Display) {
        let since = std::mem::replace(&mut self.latest, now());
        self.passed.push(format!("{what} ({})", Minutes(self.latest.duration_since(since))));
    }

    pub(crate) fn summary(&self) -> String {
        let elapsed = Minutes(now().duration_since(self.started));
        format!("{} passed in {elapsed}: {}", self.task, self.passed.join(", "))
    }
}

struct Minutes(Duration);

impl fmt::Display for Minutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ 0..60 => write!(f, "{seconds} s"),
            seconds => write!(f, "{} min {} s", seconds / 60, seconds % 60),
        }
    }
}

/// The root of the workspace in which the command was given. It may differ from the workspace in
/// which this program was compiled, because two checkouts with one target directory share the
/// binary.
pub(crate) fn root() -> PathBuf {
    let here = env::current_dir().unwrap_or_default();
    let is_root = |folder: &&Path| folder.join("xtask/Cargo.toml").is_file();
    here.ancestors().find(is_root).unwrap_or(&here).to_path_buf()
}

/// A program built by cargo, by its path in the target directory.
pub(crate) fn built(program: &str) -> PathBuf {
    let folder = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(folder).join(program)
}

#[expect(clippy::disallowed_methods, reason = "measures how long commands take; decides nothing")]
fn now() -> Instant {
    Instant::now()
}
