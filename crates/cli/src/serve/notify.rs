//! Notifications to systemd (`Type=notify`, `Type=notify-reload`, `WatchdogSec=`).
//!
//! Each is a datagram to the socket `NOTIFY_SOCKET`. Without the variable nothing is sent.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::settings::Environment;

/// The socket of systemd, if there is one.
#[derive(Debug)]
pub(super) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Interval of watchdog notifications.
    watchdog: Option<Duration>,
}

impl Notify {
    /// From the environment variables of systemd.
    pub(super) fn of(environment: &Environment) -> Self {
        let socket =
            environment.get("NOTIFY_SOCKET").and_then(|name| address(name)).and_then(|it| {
                let socket = UnixDatagram::unbound().ok()?;
                Some((socket, it))
            });
        let own = |pid: &String| *pid == std::process::id().to_string();
        // The watchdog may be for another process of the unit.
        let is_meant = environment.get("WATCHDOG_PID").is_none_or(own);
        let watchdog = environment.get("WATCHDOG_USEC").filter(|_| is_meant);
        let watchdog = watchdog.and_then(|text| text.parse::<u64>().ok());
        // Half of the required interval, as systemd advises.
        let watchdog = watchdog.filter(|it| *it >= 2).map(|it| Duration::from_micros(it / 2));
        Self { socket, watchdog }
    }

    /// Reports open listeners, or the end of a reload.
    pub(super) fn ready(&self) {
        self.say("READY=1");
    }

    /// Reports the start of a reload.
    pub(super) fn reloading(&self) {
        // systemd uses the monotonic time to tell reloads apart.
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000);
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Reports the shutdown.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// Feeds the watchdog.
    pub(super) fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// Ticks when the watchdog is due; `None` without a watchdog.
    pub(super) fn watchdog(&self) -> Option<tokio::time::Interval> {
        self.watchdog.map(tokio::time::interval)
    }

    fn say(&self, words: &str) {
        if let Some((socket, address)) = &self.socket {
            // A closed socket of systemd is not an error of the daemon.
            let _ = socket.send_to_addr(words.as_bytes(), address);
        }
    }
}

/// A path, or with `@` an abstract socket name.
fn address(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(OsStr::new(name).as_bytes()).ok(),
        None => SocketAddr::from_pathname(name).ok(),
    }
}
