//! A plain HTTP/1.1 client, one request at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any step takes on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection, opened when needed.
#[derive(Debug)]
pub(super) struct Web {
    address: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) kind: String,
    pub(super) body: String,
}

impl Web {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, connection: None }
    }

    /// Sends a request; repeats it on a new connection if the server has closed this one.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Page> {
        let was_open = self.connection.is_some();
        match self.try_to_ask(method, path, body) {
            Err(_) if was_open => self.try_to_ask(method, path, body),
            other => other,
        }
    }

    fn try_to_ask(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Page> {
        // The connection is kept only after success, because leftover bytes would be taken for the
        // next answer.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: rls\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        connection.get_mut().write_all(request.as_bytes())?;
        let (page, stays_open) = read(&mut connection)?;
        self.connection = stays_open.then_some(connection);
        Ok(page)
    }

    fn connect(&self) -> std::io::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }
}

/// Reads an answer; returns it with whether the connection stays open.
fn read(connection: &mut BufReader<TcpStream>) -> std::io::Result<(Page, bool)> {
    let status = line(connection)?.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other("no status"))?;
    let (mut kind, mut length, mut in_chunks, mut stays_open) = (String::new(), 0, false, true);
    loop {
        let head = line(connection)?;
        if head.is_empty() {
            break;
        }
        let (name, value) = head.split_once(':').unwrap_or((&head, ""));
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("content-type", value) => kind = value.into(),
            ("content-length", value) => length = value.parse().map_err(std::io::Error::other)?,
            ("transfer-encoding", _) => in_chunks = true,
            ("connection", value) => stays_open = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let mut body = Vec::new();
    while in_chunks {
        let size = line(connection)?;
        let size = usize::from_str_radix(&size, 16).map_err(std::io::Error::other)?;
        take(connection, size, &mut body)?;
        line(connection)?;
        in_chunks = size > 0;
    }
    take(connection, length, &mut body)?;
    let body = String::from_utf8(body).map_err(std::io::Error::other)?;
    Ok((Page { status, kind, body }, stays_open))
}

fn line(connection: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn take(
    connection: &mut BufReader<TcpStream>,
    length: usize,
    body: &mut Vec<u8>,
) -> std::io::Result<()> {
    let start = body.len();
    body.resize(start + length, 0);
    connection.read_exact(&mut body[start..])
}
