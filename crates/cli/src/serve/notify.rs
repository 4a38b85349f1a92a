//! Telling systemd how the daemon is (`Type=notify`, `Type=notify-reload`, `WatchdogSec=`).
//!
//! A datagram of a few words to the socket that it names; where there is none, nothing happens.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::settings::Environment;

/// Who wants to know how the daemon is.
#[derive(Debug)]
pub(super) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that the daemon lives.
    watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says.
    pub(super) fn of(environment: &Environment) -> Self {
        let socket =
            environment.get("NOTIFY_SOCKET").and_then(|name| address(name)).and_then(|it| {
                let socket = UnixDatagram::unbound().ok()?;
                Some((socket, it))
            });
        let own = |pid: &String| *pid == std::process::id().to_string();
        // It may be meant for another process of the unit.
        let is_meant = environment.get("WATCHDOG_PID").is_none_or(own);
        let watchdog = environment.get("WATCHDOG_USEC").filter(|_| is_meant);
        let watchdog = watchdog.and_then(|text| text.parse::<u64>().ok());
        // Twice as often as it has to be, as systemd advises.
        let watchdog = watchdog.filter(|it| *it >= 2).map(|it| Duration::from_micros(it / 2));
        Self { socket, watchdog }
    }

    /// Listeners are open, or a reload is over.
    pub(super) fn ready(&self) {
        self.say("READY=1");
    }

    /// The policy is read again.
    pub(super) fn reloading(&self) {
        // Its own clock, by which it tells this reload from earlier ones.
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000);
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The daemon ends.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// The daemon lives.
    pub(super) fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// Ticks whenever it is time to say so; `None` if nobody asked.
    pub(super) fn watchdog(&self) -> Option<tokio::time::Interval> {
        self.watchdog.map(tokio::time::interval)
    }

    fn say(&self, words: &str) {
        if let Some((socket, address)) = &self.socket {
            // Whoever does not listen is told nothing.
            let _ = socket.send_to_addr(words.as_bytes(), address);
        }
    }
}

/// A path, or with `@` a name that is in no file system.
fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(OsStr::new(name).as_bytes()).ok(),
        None => SocketAddr::from_pathname(name).ok(),
    }
}
