//! `tidegate serve`: answers until it is told to stop.
//!
//! ```text
//!   settings.rs ──▶ setup.rs: service and listeners ──▶ serve ──▶ signals.rs ──▶ drain
//!                   policy.rs: files, again and again          notify.rs: systemd
//! ```

mod notify;
mod policy;
mod setup;
mod signals;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_server::{Format, Log, RateLimitService, Server};
use tracing::{error, info, warn};

use self::notify::Notify;
use self::signals::Signals;
use crate::args::Serve;
use crate::settings::{Chosen, Environment, Sources, Unusable};

/// Serves until a signal ends it, or reports why it cannot.
pub(crate) fn serve(args: &Serve) -> ExitCode {
    // Names and values that are no UTF-8 cannot be settings.
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let chosen = choose(args, &environment);
    if let (Ok(chosen), true) = (&chosen, args.print_config) {
        return crate::print(&chosen.in_yaml());
    }
    let (chosen, problem) = match chosen {
        Ok(chosen) => (chosen, None),
        Err(Unusable { why, chosen }) => (chosen, Some(why)),
    };
    // As early as can be, so that all lines have one format.
    let log = setup::log(&chosen);
    let ended = problem.map_or_else(|| run(&chosen, &environment, log), Err);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            report(&chosen, problem.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Reports why the daemon did not start or did not end well: to the log, or to the terminal.
fn report(chosen: &Chosen, problem: &str) {
    match setup::log_format(chosen) {
        Format::Json => error!(event = "failed", "{problem}"),
        Format::Text => {
            // A failure to write cannot be reported anywhere; the exit status remains.
            let _ = writeln!(io::stderr(), "error: {problem}");
        }
    }
}

fn run(chosen: &Chosen, environment: &Environment, log: Log) -> Result<(), String> {
    let settings = setup::settings(chosen)?;
    for warning in &chosen.warnings {
        warn!(event = "settings", "{warning}");
    }
    let service = setup::service(chosen)?.logging(log);
    let watch = policy::watch(chosen, &service)?;
    setup::govern(chosen, &service)?;
    let notify = Notify::of(environment);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let ended = runtime.block_on(async {
        // Before anybody can know that it listens, and so send a signal that would end it at once.
        let mut signals =
            Signals::new().map_err(|error| format!("cannot take signals: {error}"))?;
        let server =
            tidegate_server::serve(&settings, &service).map_err(|error| error.to_string())?;
        announce(chosen, &server);
        notify.ready();
        signals.until_the_end(watch.as_ref(), &notify).await;
        // First of all, so that nobody sends more.
        service.status().drain();
        notify.stopping();
        let linger = chosen.span("limits.linger").unwrap_or_default();
        if !linger.is_zero() {
            info!(event = "draining", "not ready, still answering");
            tokio::select! {
                () = tokio::time::sleep(linger) => {}
                () = signals.end() => {}
            }
        }
        stop(server, &service, signals).await
    });
    // Does not wait for the connections: whoever is impatient has said so.
    runtime.shutdown_background();
    ended
}

/// Lets connections finish, unless a second signal says that there is no time for it.
async fn stop(
    server: Server,
    service: &RateLimitService,
    mut signals: Signals,
) -> Result<(), String> {
    info!(event = "stopping", "waiting for connections to finish");
    let stopping = tokio::task::spawn_blocking(|| server.stop());
    tokio::select! {
        _ = stopping => {
            // Nobody asks any more: what was taken ahead goes back to where others can take it.
            service.give_back().await;
            info!(event = "stopped", "stopped");
            Ok(())
        }
        () = signals.end() => Err("stopped before all connections had ended".into()),
    }
}

/// The settings that the file, the environment and the flags make together.
fn choose(args: &Serve, environment: &Environment) -> Result<Chosen, Unusable> {
    let name = args.settings.as_deref().map(|file| file.display().to_string());
    let text = args.settings.as_deref().map(fs::read_to_string).transpose();
    let (text, unreadable) = match text {
        Ok(text) => (text, None),
        Err(error) => {
            let name = name.as_deref().unwrap_or_default();
            (None, Some(format!("--settings: cannot read {name}: {error}")))
        }
    };
    let file = name.as_deref().zip(text.as_deref());
    let chosen = Chosen::of(&Sources { file, environment, flags: args.flags() });
    match (unreadable, chosen) {
        (Some(why), Ok(chosen) | Err(Unusable { chosen, .. })) => Err(Unusable { why, chosen }),
        (None, chosen) => chosen,
    }
}

/// Announces the listeners: in the log and, unless every line has to be JSON, on standard output, one
/// line per listener, for programs that wait for it.
fn announce(chosen: &Chosen, server: &Server) {
    let listeners: Vec<String> = server
        .listeners()
        .iter()
        .map(|(protocol, address)| format!("{} {address}", protocol.name()))
        .collect();
    let (version, listeners) = (env!("CARGO_PKG_VERSION"), listeners.join(", "));
    info!(event = "started", version, listeners, "started");
    if setup::log_format(chosen) == Format::Json {
        return;
    }
    let mut out = io::stdout().lock();
    for (protocol, address) in server.listeners() {
        // A closed standard output is no reason to stop.
        let _ = writeln!(out, "listening for {} on {address}", protocol.name());
    }
    let _ = out.flush();
}
