//! `tidegate serve`: answers until it is told to stop.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use tidegate::policy::{Merging, Refusal, Source, Update, Watch};
use tidegate_server::{Gate, Server, Settings};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Serve;
use crate::settings::{Chosen, Environment, Listener, Sources};

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
    let chosen = choose(args)?;
    if args.print_config {
        let _ = io::stdout().write_all(chosen.in_yaml().as_bytes());
        return Ok(());
    }
    for warning in &chosen.warnings {
        note(&format!("warning: {warning}"));
    }
    let gate = Gate::new().map_err(|error| format!("cannot reserve memory: {error}"))?;
    let watch =
        if chosen.paths("policy.files").is_empty() { None } else { Some(watch(&chosen, &gate)?) };
    let address = |door: &str| match chosen.listener(&format!("listen.{door}.address")) {
        Listener::Tcp(address) => Some(address),
        Listener::Off | Listener::Unix(_) => None,
    };
    let (resp, http) = (address("resp"), address("http"));
    if resp.is_none() && http.is_none() {
        return Err("every listener is off".into());
    }
    let defaults = Settings::default();
    let password = chosen.text("listen.resp.password_file");
    let threads = chosen
        .number("threads")
        .and_then(|it| usize::try_from(it).ok())
        .and_then(NonZeroUsize::new);
    let settings = Settings {
        resp,
        http,
        password: password.map(|file| password_in(Path::new(&file))).transpose()?,
        threads: threads.unwrap_or(defaults.threads),
        max_connections: chosen
            .number("limits.max_connections")
            .and_then(|it| usize::try_from(it).ok())
            .unwrap_or(defaults.max_connections),
        idle_after: chosen.span("limits.idle_after").unwrap_or(defaults.idle_after),
        drain: chosen.span("limits.drain").unwrap_or(defaults.drain),
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

/// The settings that the file, the environment and the flags make together.
fn choose(args: &Serve) -> Result<Chosen, String> {
    let name = args.settings.as_deref().map(|file| file.display().to_string());
    let text = args.settings.as_deref().map(fs::read_to_string).transpose();
    let text = text
        .map_err(|error| format!("cannot read {}: {error}", name.as_deref().unwrap_or_default()))?;
    let file = name.as_deref().zip(text.as_deref());
    // What is not text cannot be one of ours.
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    Chosen::of(&Sources { file, environment: &environment, flags: args.flags() })
}

/// One line per listener, for people and for those who start it and wait for the line.
fn announce(server: &Server) {
    let mut out = io::stdout().lock();
    for (name, address) in [("RESP", server.resp()), ("HTTP", server.http())] {
        if let Some(address) = address {
            // That nobody reads it is no reason not to serve.
            let _ = writeln!(out, "listening for {name} on {address}");
        }
    }
    let _ = out.flush();
}

/// Loads the policy, and loads it again whenever it changes.
fn watch(chosen: &Chosen, gate: &Gate) -> Result<Watch, String> {
    let merging = if chosen.flag("policy.merge") { Merging::Allow } else { Merging::Refuse };
    let source = Source::new(chosen.paths("policy.files"), merging);
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
fn password_in(file: &Path) -> Result<String, String> {
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
