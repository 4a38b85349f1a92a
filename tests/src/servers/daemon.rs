//! The daemon as users run it: `tidegate serve` in a separate process.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::clock::FakeClock;
use super::folder::Folder;
use super::process::Process;
use super::waiting::comes_true;
use crate::http;

/// Time for the daemon to start, also on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A daemon on loopback, which is ended and removed on drop.
#[derive(Debug)]
pub struct Daemon {
    // Dropped first: a folder whose daemon still writes cannot be removed.
    process: Process,
    clock: Option<FakeClock>,
    folder: Folder,
    transports: Vec<(String, SocketAddr)>,
}

/// The setup of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct DaemonSetup<'a> {
    /// The program.
    pub program: &'a Path,
    /// The text of its policy.
    pub policy: &'a str,
    /// The store: `memory` or a URL.
    pub store: &'a str,
    /// Settings, by the names of their environment variables.
    pub settings: &'a [(&'a str, &'a str)],
    /// Whether its wall clock can be stepped.
    pub has_fake_clock: bool,
}

impl Daemon {
    /// Starts a daemon and returns once it listens.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub fn start(setup: DaemonSetup<'_>) -> Self {
        Self::try_start(setup).unwrap_or_else(|log| panic!("the daemon did not start:\n{log}"))
    }

    /// As [`Daemon::start`], with gRPC on this port.
    ///
    /// # Panics
    /// With its log, if it does not start.
    pub fn start_at(setup: DaemonSetup<'_>, port: u16) -> Self {
        let started = Self::launch(setup, port);
        started.unwrap_or_else(|log| panic!("the daemon did not start:\n{log}"))
    }

    /// Like [`Daemon::start`]; returns the output if the daemon ended instead.
    pub fn try_start(setup: DaemonSetup<'_>) -> Result<Self, String> {
        Self::launch(setup, 0)
    }

    fn launch(setup: DaemonSetup<'_>, port: u16) -> Result<Self, String> {
        let folder = Folder::create();
        let policy = folder.write("policy.yaml", setup.policy).display().to_string();
        let (any, grpc) = ("127.0.0.1:0", format!("127.0.0.1:{port}"));
        let arguments = ["serve", "--resp", any, "--http", any, "--grpc", &grpc, "--admin", any];
        let rest = ["--config", &policy, "--store", setup.store];
        let arguments: Vec<String> =
            arguments.into_iter().chain(rest).map(ToOwned::to_owned).collect();
        let clock = setup.has_fake_clock.then(|| FakeClock::create(&folder));
        let mut variables = clock.as_ref().map(FakeClock::variables).unwrap_or_default();
        let settings = setup.settings.iter();
        variables.extend(settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        // The daemon runs in a separate folder.
        let program = std::path::absolute(setup.program).unwrap_or_else(|_| setup.program.into());
        let mut process = Process::start(&program, &arguments, &variables, &folder);
        let has_gateway = |(name, _): &(&str, &str)| *name == "TIDEGATE__LISTEN__GATEWAY__ADDRESS";
        let expected = 4 + usize::from(setup.settings.iter().any(has_gateway));
        let mut transports = Vec::new();
        comes_true(START_LIMIT, || {
            transports = listeners(&folder.log());
            transports.len() == expected || !process.is_running()
        });
        if transports.len() < expected {
            return Err(folder.log());
        }
        Ok(Self { process, clock, folder, transports })
    }

    /// The address of its listener for `RESP`, `HTTP`, `gRPC`, `admin` or `gateway`.
    ///
    /// # Panics
    /// If it has no such listener.
    pub fn transport(&self, protocol: &str) -> SocketAddr {
        let transport = self.transports.iter().find(|(name, _)| name == protocol);
        transport.unwrap_or_else(|| panic!("no transport for {protocol}")).1
    }

    /// A page of the admin listener.
    pub fn admin(&self, path: &str) -> http::Answer {
        http::get(self.transport("admin"), path, "")
    }

    /// Whether a circuit is not closed, by `/v1/status`.
    pub fn is_degraded(&self) -> bool {
        self.admin("/v1/status").body.contains("\"degraded\"")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends SIGKILL, like a crash.
    pub fn kill(&self) {
        self.process.signal(Signal::KILL);
    }

    /// Stops the process.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Moves its wall clock by this many seconds; steps add up.
    ///
    /// # Panics
    /// If it was started without such a clock.
    pub fn step_clock(&self, seconds: i64) {
        let Some(clock) = &self.clock else { panic!("it was started without a clock to step") };
        clock.step(seconds);
    }

    /// Resident memory of the process.
    pub fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
    }

    /// Number of open files and sockets.
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.pid())).map_or(0, Iterator::count)
    }

    /// False once the daemon has ended.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// The lines of its output that begin with this text.
    pub fn lines(&self, start: &str) -> Vec<String> {
        let log = self.folder.log();
        log.lines().filter(|line| line.starts_with(start)).map(ToOwned::to_owned).collect()
    }

    /// The last lines of its output.
    pub fn log_tail(&self) -> String {
        self.folder.log_tail()
    }
}

fn listeners(log: &str) -> Vec<(String, SocketAddr)> {
    let lines = log.lines().filter_map(|line| {
        let (protocol, address) = line.strip_prefix("listening for ")?.split_once(" on ")?;
        Some((protocol.to_owned(), address.parse().ok()?))
    });
    lines.collect()
}
