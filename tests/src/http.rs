//! A plain HTTP client: it sends the text of the test, and adds nothing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Far longer than an answer takes, so that only a hang fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest head that is read.
const MAX_HEAD: u64 = 1 << 20;

/// A parsed answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code, such as 200.
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    /// All bytes after the head.
    pub body: String,
}

impl Answer {
    /// Parses an answer.
    ///
    /// # Panics
    /// If the text is not an HTTP response.
    pub fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
        Self {
            status: status(head).expect("a status"),
            head: head.to_lowercase(),
            body: body.into(),
        }
    }

    /// The first header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
    }
}

fn status(head: &str) -> Option<u16> {
    head.split(' ').nth(1)?.parse().ok()
}

/// A connection with a timeout.
///
/// # Panics
/// If nothing listens there.
pub fn connect(address: impl ToSocketAddrs) -> TcpStream {
    dial(address).expect("a listener")
}

fn dial(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Like [`connect`], from an address of 127.0.0.0/8, all of which this machine has.
///
/// # Panics
/// If nothing listens there.
pub fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let socket = runtime.expect("a runtime").block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        socket.connect(address).await?.into_std()
    });
    let socket = socket.expect("a listener");
    socket.set_nonblocking(false).expect("a socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    socket
}

/// A request with a body. Each header includes its line end.
pub fn request(call: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("{call} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}")
}

/// Sends this text, and reads until the connection ends.
pub fn send(address: impl ToSocketAddrs, request: impl AsRef<[u8]>) -> Answer {
    let mut socket = connect(address);
    // The connection may be closed before all bytes are sent.
    let _ = socket.write_all(request.as_ref());
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    Answer::read(&String::from_utf8_lossy(&answer))
}

/// One call, such as `POST /v1/check`, on a new connection; each header includes its line end.
pub fn ask(address: impl ToSocketAddrs, call: &str, headers: &str, body: &str) -> Answer {
    send(address, request(call, &format!("connection: close\r\n{headers}"), body))
}

/// One GET on a new connection; each header includes its line end.
pub fn get(address: impl ToSocketAddrs, path: &str, headers: &str) -> Answer {
    let address =
        address.to_socket_addrs().ok().and_then(|mut all| all.next()).expect("an address");
    // Proxies choose a site by the host.
    let host = format!("host: {address}\r\nconnection: close\r\n");
    send(address, format!("GET {path} HTTP/1.1\r\n{host}{headers}\r\n"))
}

/// A connection that is kept for many calls, and reports errors.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects.
    pub fn open(address: impl ToSocketAddrs) -> io::Result<Self> {
        dial(address).map(|socket| Self(BufReader::new(socket)))
    }

    /// Sends a request, and waits for the answer.
    pub fn ask(&mut self, call: &str, body: &str) -> io::Result<Answer> {
        self.send(call, body)?;
        self.answer()
    }

    /// Sends a request, and does not wait.
    pub fn send(&mut self, call: &str, body: &str) -> io::Result<()> {
        self.0.get_mut().write_all(request(call, "", body).as_bytes())
    }

    /// The next answer.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let (mut head, mut bounded) = (String::new(), self.0.by_ref().take(MAX_HEAD));
        while !head.ends_with("\r\n\r\n") {
            if bounded.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let odd = || io::Error::other(format!("answered {head:?}"));
        let status = status(&head).ok_or_else(odd)?;
        let answer = Answer { status, head: head.to_lowercase(), body: String::new() };
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; length.ok_or_else(odd)?];
        self.0.read_exact(&mut body)?;
        Ok(Answer { body: String::from_utf8_lossy(&body).into_owned(), ..answer })
    }
}
