//! Signals of the process.

use std::io;

use tidegate::policy::Watch;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::notify::Notify;

/// The signals that the daemon handles.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Completes on SIGTERM or SIGINT.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Completes on SIGTERM or SIGINT, like [`Signals::end`]; meanwhile reloads the policy on
    /// SIGHUP and notifies the watchdog of systemd.
    pub(super) async fn until_the_end(&mut self, watch: Option<&Watch>, notify: &Notify) {
        // One interval for the whole loop, so that other signals do not delay it.
        let mut watchdog = notify.watchdog();
        loop {
            let tick = async {
                match &mut watchdog {
                    Some(ticks) => drop(ticks.tick().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    notify.reloading();
                    if let Some(watch) = watch {
                        watch.reload_now();
                    }
                    notify.ready();
                }
                () = tick => notify.alive(),
            }
        }
    }
}
