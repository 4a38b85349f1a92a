//! What the system and the people say to a process.

use std::io;

use tidegate::policy::Watch;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::notify::Notify;

/// The signals that mean something here.
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

    /// Completes when the process is to end.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The same; meanwhile it reads the policy again whenever somebody asks for it, and tells systemd
    /// that it is alive as often as that wants to hear it.
    pub(super) async fn until_the_end(&mut self, watch: Option<&Watch>, notify: &Notify) {
        // One for all, so that no other signal puts it off.
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
