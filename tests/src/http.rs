//! HTTP by hand: what is sent is what stands in a test, and nothing is added.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Far longer than an answer takes; only so that what hangs fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer, taken apart.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// In small letters.
    pub head: String,
    /// All that follows.
    pub body: String,
}

impl Answer {
    /// Takes an answer apart.
    ///
    /// # Panics
    /// If it is none.
    pub fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self { status: status.expect("a status"), head: head.to_lowercase(), body: body.into() }
    }

    /// The first header of this name, which is in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
    }
}

/// A connection that fails rather than hangs.
///
/// # Panics
/// If nobody listens there.
pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("somebody listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("not zero");
    socket.set_write_timeout(Some(PATIENCE)).expect("not zero");
    socket
}

/// Sends this and nothing more, and takes what comes back until the connection ends.
pub fn send(address: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
    let mut socket = connect(address);
    // It may be closed before all of it is sent.
    let _ = socket.write_all(request.as_ref());
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    Answer::read(&String::from_utf8_lossy(&answer))
}

/// One GET on a connection of its own; each of the headers ends its line.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> Answer {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    send(address, format!("{head}{headers}\r\n"))
}
