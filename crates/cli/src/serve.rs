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

use tidegate_server::{Event, Level, RateLimitService, Server};

use self::notify::Notify;
use self::signals::Signals;
use crate::args::Serve;
use crate::settings::{Chosen, Environment, Sources};

/// Serves, and says why not by its exit status.
pub(crate) fn serve(args: &Serve) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Nobody is there to be told that nobody reads it.
            let _ = writeln!(io::stderr(), "error: {}", problem.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Serve) -> Result<(), String> {
    // What is not text cannot be one of ours.
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
        // Before anybody can know that it listens, and so send a signal that would end it at once.
        let mut signals =
            Signals::new().map_err(|error| format!("cannot take signals: {error}"))?;
        let server =
            tidegate_server::serve(&settings, &service).map_err(|error| error.to_string())?;
        announce(&server);
        notify.ready();
        signals.until_the_end(watch.as_ref(), &notify).await;
        // First of all, so that nobody sends more.
        service.status().drain();
        notify.stopping();
        let linger = chosen.span("limits.linger").unwrap_or_default();
        if !linger.is_zero() {
            let log = service.status().log();
            log.say(Level::Info, Event::Stopping, "not ready any more, and still answering");
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
    service.status().log().say(Level::Info, Event::Stopping, "letting connections finish");
    let stopping = tokio::task::spawn_blocking(|| server.stop());
    tokio::select! {
        _ = stopping => {
            // Nobody asks any more: what was taken ahead goes back to where others can take it.
            service.give_back().await;
            Ok(())
        }
        () = signals.end() => Err("stopped before all connections had ended".into()),
    }
}

/// The settings that the file, the environment and the flags make together.
fn choose(args: &Serve, environment: &Environment) -> Result<Chosen, String> {
    let name = args.settings.as_deref().map(|file| file.display().to_string());
    let text = args.settings.as_deref().map(fs::read_to_string).transpose();
    let text = text.map_err(|error| {
        format!("--settings: cannot read {}: {error}", name.as_deref().unwrap_or_default())
    })?;
    let file = name.as_deref().zip(text.as_deref());
    Chosen::of(&Sources { file, environment, flags: args.flags() })
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
