//! `tidegate serve`: answers until it is told to stop.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use tidegate::policy::{Merging, Refusal, Source, Update, Watch};
use tidegate_server::{Gate, Server, Settings};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Serve;

/// Serves, and says why not by its exit status.
pub(crate) fn serve(args: &Serve) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            note(&format!("error: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Serve) -> Result<(), String> {
    let gate = Gate::new().map_err(|error| format!("cannot reserve memory: {error}"))?;
    let watch = if args.config.is_empty() { None } else { Some(watch(args, &gate)?) };
    if args.resp.0.is_none() && args.http.0.is_none() {
        return Err("every listener is off".into());
    }
    let defaults = Settings::default();
    let settings = Settings {
        resp: args.resp.0.map(Into::into),
        http: args.http.0.map(Into::into),
        password: args.password_file.as_deref().map(password).transpose()?,
        threads: args.threads.unwrap_or(defaults.threads),
        ..defaults
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let ended = runtime.block_on(async {
        // Before anybody can know that it listens, and so send a signal that would end it at once.
        let signals = Signals::new().map_err(|error| format!("cannot take signals: {error}"))?;
        let server = tidegate_server::serve(&settings, &gate).map_err(|error| error.to_string())?;
        announce(&server);
        signals.until_the_end(watch.as_ref()).await;
        // A second signal ends it at once, for connections may take their time.
        let stopping = tokio::task::spawn_blocking(|| server.stop());
        let mut again = Signals::new().map_err(|error| format!("cannot take signals: {error}"))?;
        tokio::select! {
            _ = stopping => Ok(()),
            () = again.end() => Err("stopped before all connections had ended".into()),
        }
    });
    // Does not wait for the connections: whoever is impatient has said so.
    runtime.shutdown_background();
    ended
}

/// One line per listener, for people and for those who start it and wait for the line.
fn announce(server: &Server) {
    let mut out = io::stdout().lock();
    for (protocol, address) in server.listeners() {
        // That nobody reads it is no reason not to serve.
        let _ = writeln!(out, "listening for {} on {address}", protocol.name());
    }
    let _ = out.flush();
}

/// Loads the policy, and loads it again whenever it changes.
fn watch(args: &Serve, gate: &Gate) -> Result<Watch, String> {
    let merging = if args.merge { Merging::Allow } else { Merging::Refuse };
    let source = Source::new(args.config.iter().cloned(), merging);
    let texts = source.read().map_err(|error| error.to_string())?;
    let loaded = texts.load();
    let Some(policy) = loaded.policy else {
        return Err(format!("the policy cannot be used\n{}", loaded.findings.trim_end()));
    };
    note(&loaded.findings);
    gate.replace(policy);
    let gate = gate.clone();
    let watch = Watch::builder(source).in_force(&texts).start(move |change| match change {
        Ok(Update { policy, findings, .. }) => {
            gate.replace(policy);
            note(&format!("policy reloaded\n{findings}"));
        }
        Err(refusal) => note(&format!("policy not reloaded: {}", why(&refusal))),
    });
    watch.map_err(|error| format!("cannot watch the policy: {error}"))
}

/// What is wrong with the files, with all that was found.
fn why(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Wrong { findings, .. } => format!("{refusal}\n{findings}"),
        other => other.to_string(),
    }
}

/// The first line of the file.
fn password(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{} has no password in its first line", file.display())),
    }
}

/// Says something to whoever runs it.
fn note(text: &str) {
    let text = text.trim_end();
    if !text.is_empty() {
        // Nobody is there to be told that nobody reads it.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// What the system and the people say to a process.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Completes when the process is to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The same, reading the policy again meanwhile whenever somebody asks for it.
    async fn until_the_end(mut self, watch: Option<&Watch>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    if let Some(watch) = watch {
                        watch.reload_now();
                    }
                }
            }
        }
    }
}
