//! Socket activation: listeners that systemd has opened (`LISTEN_FDS`).

use std::io;

use listenfd::ListenFd;
use tidegate_server::{Address, Inherited, Protocol};

use crate::settings::{Chosen, Environment, Listener, Origin, Value, table};

/// The sockets that the process has inherited, by the listener in their name. They replace the
/// listeners' addresses.
pub(super) fn sockets(
    environment: &Environment,
    chosen: &mut Chosen,
) -> Result<Vec<(Protocol, Inherited)>, String> {
    if !environment.contains_key("LISTEN_FDS") {
        return Ok(Vec::new());
    }
    let names = environment.get("LISTEN_FDNAMES").map_or("", String::as_str);
    let mut names = names.split(':');
    // Empty if the sockets are meant for another process.
    let mut given = ListenFd::from_env();
    let mut sockets: Vec<(Protocol, Inherited)> = Vec::new();
    for number in 0..given.len() {
        let name = names.next().unwrap_or_default();
        let protocol = Protocol::ALL.into_iter().find(|it| name == it.name().to_ascii_lowercase());
        let protocol = protocol.ok_or_else(|| {
            format!(
                "LISTEN_FDNAMES: socket {number} is named {name:?}; name it http, grpc, resp, admin, \
                 metrics or gateway, by FileDescriptorName= in its socket unit"
            )
        })?;
        if sockets.iter().any(|(taken, _)| *taken == protocol) {
            return Err(format!("LISTEN_FDNAMES: two sockets are named {name}; give one"));
        }
        let failed = |error: io::Error| format!("LISTEN_FDS: socket {number} ({name}): {error}");
        let socket = take(&mut given, number).map_err(failed)?;
        let listener = match socket.address().map_err(failed)? {
            Address::Tcp(address) => Listener::Tcp(address),
            Address::Unix(path) => Listener::Unix(path),
        };
        if let Some(setting) = table::find(&format!("listen.{name}.address")) {
            let origin = Origin::Environment("LISTEN_FDS".into());
            chosen.set(setting, Value::Listener(listener), origin);
        }
        sockets.push((protocol, socket));
    }
    Ok(sockets)
}

/// Takes a socket of either kind.
fn take(given: &mut ListenFd, number: usize) -> io::Result<Inherited> {
    if let Ok(Some(listener)) = given.take_tcp_listener(number) {
        return Ok(Inherited::Tcp(listener));
    }
    let listener = given.take_unix_listener(number)?;
    listener.map(Inherited::Unix).ok_or_else(|| io::ErrorKind::NotFound.into())
}
