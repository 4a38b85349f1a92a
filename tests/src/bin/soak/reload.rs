//! A policy that changes, and whether the daemon follows it.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate_tests::http;

use super::daemon::Daemon;
use super::load::now;

/// The lowest rate; the others are above it.
const LEAST_RATE: u32 = 1_000;

/// Number of rates.
const RATES: u32 = 7;

/// One of this many files is invalid and must change nothing.
const BROKEN_EVERY: u32 = 5;

/// Time within which a change must be noticed, on a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Whether some policy of this run has this limit.
pub(crate) fn is_some_limit(limit: u64) -> bool {
    (u64::from(LEAST_RATE)..u64::from(LEAST_RATE + RATES)).contains(&limit) || limit == 50_000
}

/// The policy file, and the outcome of its changes.
pub(crate) struct Reloads {
    policy: PathBuf,
    changes: u32,
    /// The rate in force.
    rate: u32,
    /// Changes that took effect.
    pub(crate) taken: u32,
    /// Invalid files that were refused.
    pub(crate) refused: u32,
}

impl Reloads {
    /// Writes the first policy.
    pub(crate) fn new(policy: PathBuf) -> io::Result<Self> {
        let new = Self { policy, changes: 0, rate: LEAST_RATE, taken: 0, refused: 0 };
        new.write(&new.text(LEAST_RATE))?;
        Ok(new)
    }

    /// State under these limits ends within half a minute, so that keys come and go.
    fn text(&self, rate: u32) -> String {
        format!(
            "# change {}\ndomain: soak\ndescriptors:\n  - key: user\n    limits:\n      \
             - {{name: fast, rate: {rate}/s}}\n      \
             - {{name: span, rate: 50000/10s, algorithm: sliding_window}}\n  \
             - {{key: probe, rate: {rate}/s}}\n",
            self.changes
        )
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let new = self.policy.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, &self.policy)
    }

    /// Changes the file, and waits until the daemon has noticed it and decides by it.
    pub(crate) fn change(&mut self, daemon: &Daemon) -> Result<(), String> {
        self.changes += 1;
        let is_broken = self.changes.is_multiple_of(BROKEN_EVERY);
        let rate = LEAST_RATE + self.changes % RATES;
        let before = PolicyReport::ask(daemon)?;
        let text = if is_broken { "domain: [".to_owned() } else { self.text(rate) };
        self.write(&text).map_err(|error| error.to_string())?;
        let start = now();
        loop {
            let reply = PolicyReport::ask(daemon)?;
            let is_noticed = match is_broken {
                true => reply.refused > before.refused,
                false => reply.loaded > before.loaded && reply.revision != before.revision,
            };
            if is_noticed {
                break;
            }
            if start.elapsed() > NOTICED_WITHIN {
                return Err(format!("change {} of the policy was not noticed", self.changes));
            }
            thread::park_timeout(Duration::from_millis(50));
        }
        if is_broken {
            self.refused += 1;
        } else {
            (self.taken, self.rate) = (self.taken + 1, rate);
        }
        let answered = probe(daemon, self.changes).map_err(|error| error.to_string())?;
        let expected = self.rate.to_string();
        if answered != expected {
            let changes = self.changes;
            return Err(format!("change {changes}: the limit is {answered}, not {expected}"));
        }
        Ok(())
    }
}

/// The policy as reported by the admin port.
struct PolicyReport {
    revision: String,
    loaded: u64,
    refused: u64,
}

impl PolicyReport {
    fn ask(daemon: &Daemon) -> Result<Self, String> {
        let mut connection =
            http::Connection::open(daemon.admin).map_err(|error| format!("admin: {error}"))?;
        let answer = connection.ask("GET /v1/policy", "").map_err(|it| format!("admin: {it}"))?;
        let reply: Value = serde_json::from_str(&answer.body).map_err(|it| it.to_string())?;
        let number = |name: &str| reply[name].as_u64().ok_or(format!("no {name} in {reply}"));
        let revision = reply["revision"].to_string();
        Ok(Self { revision, loaded: number("loaded")?, refused: number("refused")? })
    }
}

/// The limit of a new key, over the Redis protocol.
fn probe(daemon: &Daemon, change: u32) -> io::Result<String> {
    let mut socket = http::connect(daemon.resp);
    socket.write_all(format!("TG.CHECK soak probe p{change}\r\nQUIT\r\n").as_bytes())?;
    let answer = io::read_to_string(socket)?;
    let limit = answer.lines().nth(2).and_then(|line| line.strip_prefix(':'));
    limit.map(str::to_owned).ok_or_else(|| io::Error::other(format!("answered {answer:?}")))
}
