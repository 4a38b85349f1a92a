//! `tidegate serve`: runs the daemon until a signal stops it.
//!
//! ```text
//!   settings.rs ──▶ setup.rs: service and listeners ──▶ serve ──▶ signals.rs ──▶ drain
//!                   policy.rs: files, with reload              notify.rs: systemd
//! ```

mod activation;
mod gateway;
mod notify;
mod policy;
mod setup;
mod signals;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_server::{Format, Inherited, Log, Protocol, RateLimitService, Server};
use tracing::{error, info, warn};

use self::notify::Notify;
use self::signals::Signals;
use crate::args::Serve;
use crate::settings::{Chosen, Environment, Sources, Unusable};

/// Serves until a signal ends it, or reports why it cannot.
pub(crate) fn serve(args: &Serve) -> ExitCode {
    // Names and values that are not UTF-8 cannot be settings.
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    // Called before other threads exist, because reading the sockets changes the environment.
    let (chosen, sockets) = match choose(args, &environment) {
        Ok(mut chosen) => match activation::sockets(&environment, &mut chosen) {
            Ok(sockets) => (Ok(chosen), sockets),
            Err(why) => (Err(Unusable { why, chosen }), Vec::new()),
        },
        Err(unusable) => (Err(unusable), Vec::new()),
    };
    if let (Ok(chosen), true) = (&chosen, args.print_config) {
        return crate::print(&chosen.in_yaml());
    }
    let (chosen, problem) = match chosen {
        Ok(chosen) => (chosen, None),
        Err(Unusable { why, chosen }) => (chosen, Some(why)),
    };
    // Opened as early as possible, so that all lines have one format.
    let log = setup::log(&chosen);
    let ended = problem.map_or_else(|| run(&chosen, &environment, sockets, log), Err);
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

fn run(
    chosen: &Chosen,
    environment: &Environment,
    sockets: Vec<(Protocol, Inherited)>,
    log: Log,
) -> Result<(), String> {
    let settings = setup::settings(chosen)?;
    for warning in &chosen.warnings {
        warn!(event = "settings", "{warning}");
    }
    let service = setup::service(chosen)?.logging(log);
    let watch = policy::watch(chosen, &service, settings.gateway.as_ref())?;
    setup::govern(chosen, &service)?;
    let notify = Notify::of(environment);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let ended = runtime.block_on(async {
        // Before the listeners open, so that a signal never hits the default handler.
        let mut signals =
            Signals::new().map_err(|error| format!("cannot install signal handlers: {error}"))?;
        let server =
            tidegate_server::serve_on(&settings, &service, sockets).map_err(|it| it.to_string())?;
        announce(chosen, &server);
        notify.ready();
        signals.until_the_end(watch.as_ref(), &notify).await;
        // First, so that load balancers stop sending requests.
        service.status().drain();
        notify.stopping();
        let linger = chosen.span("limits.linger").unwrap_or_default();
        if !linger.is_zero() {
            info!(event = "draining", "not ready, still serving");
            tokio::select! {
                () = tokio::time::sleep(linger) => {}
                () = signals.end() => {}
            }
        }
        stop(server, &service, signals).await
    });
    // Does not wait for connections, because a second signal arrived.
    runtime.shutdown_background();
    ended
}

/// Drains connections, until a second signal.
async fn stop(
    server: Server,
    service: &RateLimitService,
    mut signals: Signals,
) -> Result<(), String> {
    info!(event = "stopping", "draining connections");
    let stopping = tokio::task::spawn_blocking(|| server.stop());
    tokio::select! {
        _ = stopping => {
            // No request is left: return leased units to the store for other nodes.
            service.give_back().await;
            info!(event = "stopped", "stopped");
            Ok(())
        }
        () = signals.end() => Err("stopped before all connections were closed".into()),
    }
}

/// Merges the settings file, the environment and the flags.
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
