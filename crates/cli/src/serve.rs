//! `tidegate serve`: runs the daemon until a signal stops it.
//!
//! ```text
//!   settings.rs ──▶ setup.rs: service and listeners ──▶ serve ──▶ signals.rs ──▶ drain
//!                   policy.rs: files, with reload              notify.rs: systemd
//! ```

mod notify;
mod policy;
mod setup;
mod signals;

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_server::{Event, Level, RateLimitService, Server};

use self::notify::Notify;
use self::signals::Signals;
use crate::args::Serve;
use crate::settings::{Chosen, Environment, Sources};

/// Runs the daemon. The exit status is 1 if it cannot start.
pub(crate) fn serve(args: &Serve) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Nothing can be done if standard error is closed.
            let _ = writeln!(io::stderr(), "error: {}", problem.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Serve) -> Result<(), String> {
    // All variables that are read are UTF-8.
    let environment: Environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let chosen = choose(args, &environment)?;
    if args.print_config {
        return io::stdout()
            .write_all(chosen.in_yaml().as_bytes())
            .map_err(|error| format!("cannot write to standard output: {error}"));
    }
    let (settings, log) = (setup::settings(&chosen)?, setup::log(&chosen));
    for warning in &chosen.warnings {
        log.say(Level::Warn, Event::Settings, warning);
    }
    let service = setup::service(&chosen)?.logging(log);
    let watch = policy::watch(&chosen, &service)?;
    setup::govern(&chosen, &service)?;
    let notify = Notify::of(&environment);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let ended = runtime.block_on(async {
        // Before the listeners open, so that a signal never hits the default handler.
        let mut signals =
            Signals::new().map_err(|error| format!("cannot install signal handlers: {error}"))?;
        let server =
            tidegate_server::serve(&settings, &service).map_err(|error| error.to_string())?;
        announce(&server);
        notify.ready();
        signals.until_the_end(watch.as_ref(), &notify).await;
        // First, so that load balancers stop sending requests.
        service.status().drain();
        notify.stopping();
        let linger = chosen.span("limits.linger").unwrap_or_default();
        if !linger.is_zero() {
            let log = service.status().log();
            log.say(Level::Info, Event::Stopping, "not ready; serving until limits.linger is over");
            tokio::select! {
                () = tokio::time::sleep(linger) => {}
                () = signals.end() => {}
            }
        }
        stop(server, &service, signals).await
    });
    // Does not wait for connections: a second signal asked for that.
    runtime.shutdown_background();
    ended
}

/// Drains connections, until a second signal.
async fn stop(
    server: Server,
    service: &RateLimitService,
    mut signals: Signals,
) -> Result<(), String> {
    service.status().log().say(Level::Info, Event::Stopping, "draining connections");
    let stopping = tokio::task::spawn_blocking(|| server.stop());
    tokio::select! {
        _ = stopping => {
            // No request is left: return leased units to the store for other nodes.
            service.give_back().await;
            Ok(())
        }
        () = signals.end() => Err("stopped before all connections were closed".into()),
    }
}

/// Merges the settings file, the environment and the flags.
fn choose(args: &Serve, environment: &Environment) -> Result<Chosen, String> {
    let name = args.settings.as_deref().map(|file| file.display().to_string());
    let text = args.settings.as_deref().map(fs::read_to_string).transpose();
    let text = text.map_err(|error| {
        format!("--settings: cannot read {}: {error}", name.as_deref().unwrap_or_default())
    })?;
    let file = name.as_deref().zip(text.as_deref());
    Chosen::of(&Sources { file, environment, flags: args.flags() })
}

/// Prints one line per listener. Programs that start the daemon wait for these lines.
fn announce(server: &Server) {
    let mut out = io::stdout().lock();
    for (protocol, address) in server.listeners() {
        // A closed standard output is no reason not to serve.
        let _ = writeln!(out, "listening for {} on {address}", protocol.name());
    }
    let _ = out.flush();
}
