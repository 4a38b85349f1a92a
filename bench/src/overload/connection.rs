//! One connection of the load generator: HTTP/1.1, one request at a time.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::load::SLOW_READ;
use super::spec::CLASSES;

/// The result of reading.
pub enum Read {
    /// The response is incomplete.
    Part,
    /// A slow reader reads on after this time.
    Later(Duration),
    /// A response with this status.
    Whole(u16),
    Broken,
}

/// Pieces in which a slow reader reads.
const PIECES: u32 = 10;

/// The longest head of a response.
const MOST_HEAD: usize = 8 * 1_024;

pub struct Connection {
    socket: TcpStream,
    is_slow: bool,
    head: Vec<u8>,
    /// Set once the head has arrived: the status, and the number of missing bytes of the body.
    body: Option<(u16, usize)>,
    requests: [Vec<u8>; CLASSES.len()],
}

impl Connection {
    pub fn open(address: SocketAddr, is_slow: bool) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        if is_slow {
            // A small buffer, so that the unread part of a response stays in the server.
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096)?;
        }
        socket.set_nonblocking(true)?;
        let request =
            |class| format!("GET /{class} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes();
        Ok(Self { socket, is_slow, head: Vec::new(), body: None, requests: CLASSES.map(request) })
    }

    pub const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub const fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub fn send(&mut self, class: usize) -> io::Result<()> {
        // A request this small fits into the buffer of an idle connection.
        self.socket.write_all(&self.requests[class])
    }

    pub fn read(&mut self) -> Read {
        let mut buffer = [0; 16 * 1_024];
        loop {
            let length = match self.socket.read(&mut buffer) {
                Ok(0) => return Read::Broken,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Read::Part,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Read::Broken,
            };
            match self.take(&buffer[..length]) {
                Read::Part if self.is_slow => return Read::Later(SLOW_READ / PIECES),
                Read::Part => {}
                done => return done,
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Read {
        if self.body.is_none() {
            let before = self.head.len();
            self.head.extend_from_slice(bytes);
            let Some(end) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
                return if self.head.len() > MOST_HEAD { Read::Broken } else { Read::Part };
            };
            let Some(body) = parse(&self.head[..end]) else { return Read::Broken };
            self.body = Some(body);
            self.head.clear();
            bytes = &bytes[end + 4 - before..];
        }
        let Some((status, missing)) = &mut self.body else { return Read::Part };
        *missing = missing.saturating_sub(bytes.len());
        if *missing > 0 {
            return Read::Part;
        }
        let status = *status;
        self.body = None;
        Read::Whole(status)
    }
}

/// Status and length of the body; all servers of the benchmark send a length.
pub fn parse(head: &[u8]) -> Option<(u16, usize)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Some((status, length?))
}
