//! A service behind the gateway. It notes the head of every request and answers by the path.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A service that is ended when dropped.
pub(crate) struct Service {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    heads: Mutex<Vec<String>>,
    /// The head and the body of each request that has arrived whole.
    requests: Mutex<Vec<(String, String)>>,
    connections: AtomicUsize,
    is_over: AtomicBool,
    is_unhealthy: AtomicBool,
    /// Whether responses to `/held` may end.
    is_released: (Mutex<bool>, Condvar),
}

impl Service {
    pub(crate) fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if own.is_over.load(Ordering::Acquire) {
                    return;
                }
                own.connections.fetch_add(1, Ordering::AcqRel);
                let shared = Arc::clone(&own);
                thread::spawn(move || shared.serve(socket));
            }
        });
        Self { address, shared }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.shared.heads.lock().expect("no panic").clone()
    }

    /// The heads and bodies of all requests that have arrived whole.
    pub(crate) fn requests(&self) -> Vec<(String, String)> {
        self.shared.requests.lock().expect("no panic").clone()
    }

    /// Forgets all requests so far.
    pub(crate) fn forget(&self) {
        self.shared.heads.lock().expect("no panic").clear();
        self.shared.requests.lock().expect("no panic").clear();
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Whether `/health` is answered with 200.
    pub(crate) fn set_healthy(&self, is_healthy: bool) {
        self.shared.is_unhealthy.store(!is_healthy, Ordering::Release);
    }

    /// Lets the responses to `/held` end.
    pub(crate) fn release(&self) {
        let (is_released, changed) = &self.shared.is_released;
        *is_released.lock().expect("no panic") = true;
        changed.notify_all();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.release();
        self.shared.is_over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn wait_for_release(&self) {
        let (is_released, changed) = &self.is_released;
        let released = is_released.lock().expect("no panic");
        drop(changed.wait_while(released, |it| !*it));
    }

    fn serve(&self, socket: TcpStream) {
        let mut reader = BufReader::new(socket.try_clone().expect("a socket"));
        let mut socket = socket;
        let mut served = 0;
        while let Some(head) = read_head(&mut reader) {
            served += 1;
            self.heads.lock().expect("no panic").push(head.clone());
            let (body, is_whole) = read_body(&mut reader, &head);
            if is_whole {
                self.requests.lock().expect("no panic").push((head.clone(), body.clone()));
            }
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let answer = match &*path {
                // Takes the second request of a connection and closes without a word.
                "/stale" if served > 1 => {
                    let _ = socket.shutdown(Shutdown::Both);
                    return;
                }
                "/hang" => {
                    self.wait_for_release();
                    return;
                }
                "/held" => {
                    let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhe";
                    let _ = socket.write_all(head.as_bytes());
                    self.wait_for_release();
                    "ld".to_owned()
                }
                // Ends once it is released.
                "/hints" => {
                    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nconnection: x-own\r\n\
                                 x-own: 1\r\n\r\n";
                    let _ = socket.write_all(hints.as_bytes());
                    self.wait_for_release();
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                }
                "/websocket" => {
                    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                                  upgrade: websocket\r\n\r\n";
                    let _ = socket.write_all(switch.as_bytes());
                    let mut bytes = [0; 64];
                    while let Ok(length @ 1..) = reader.read(&mut bytes) {
                        let _ = socket.write_all(&bytes[..length]);
                    }
                    return;
                }
                "/health" if self.is_unhealthy.load(Ordering::Acquire) => {
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".into()
                }
                "/closing" => {
                    let _ = socket.write_all(
                        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
                    );
                    return;
                }
                "/login" if head.contains("x-password: wrong") => {
                    "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".into()
                }
                "/" if head.starts_with("HEAD ") => {
                    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".into()
                }
                path => fixed(path).unwrap_or_else(|| {
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                }),
            };
            if socket.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The end of the responses to paths that end with `ok`.
pub(super) const OK: &str = "HTTP/1.1 200 OK\r\ndate: Tue, 03 Feb 2026 10:00:00 GMT\r\n\
                             content-length: 2\r\n\r\nok";

/// The responses that do not depend on the request.
fn fixed(path: &str) -> Option<String> {
    let text = match path {
        "/long-trailers" => {
            let sum = "7".repeat(9 << 10);
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            return Some(format!("{head}2\r\nok\r\n0\r\nx-sum: {sum}\r\n\r\n"));
        }
        "/two-lengths" => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
        "/both" => {
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        }
        "/coded" => {
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        }
        "/odd-length" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 2, 2\r\n\r\n",
        "/garbage" => "NOT HTTP\r\n\r\n",
        "/switch" => {
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        }
        "/other-switch" => {
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
        }
        "/hop" => {
            "HTTP/1.1 200 OK\r\nconnection: x-own, keep-alive\r\nx-own: 1\r\nkeep-alive: 1\r\nx-kept: 1\r\ncontent-length: 0\r\n\r\n"
        }
        "/ok" => "",
        "/continue-ok" => "HTTP/1.1 100 Continue\r\n\r\n",
        "/hints-ok" => "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n",
        "/hints-with-length-ok" => {
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\ncontent-length: 5\r\n\r\n"
        }
        "/hints-with-chunks-ok" => {
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\ntransfer-encoding: chunked\r\n\r\n"
        }
        "/twenty-hints-ok" => {
            let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n".repeat(20);
            return Some(hints + OK);
        }
        "/trailers" => {
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n"
        }
        _ => return None,
    };
    let ok = if path.ends_with("ok") { OK } else { "" };
    Some(format!("{text}{ok}"))
}

fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    loop {
        let (before, mut line) = (head.len(), Vec::new());
        if reader.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        head.push_str(&String::from_utf8_lossy(&line));
        if head[before..] == *"\r\n" {
            return Some(head.to_lowercase().replacen(
                &head.to_lowercase()[..head.find("\r\n").unwrap_or(0)],
                &head[..head.find("\r\n").unwrap_or(0)],
                1,
            ));
        }
    }
}

/// The body, of a chunked one everything without the sizes; and whether it has arrived whole.
fn read_body(reader: &mut impl BufRead, head: &str) -> (String, bool) {
    let (mut body, mut is_whole) = (Vec::new(), true);
    if let Some((_, rest)) = head.split_once("content-length: ") {
        let length = rest.lines().next().and_then(|text| text.parse().ok()).unwrap_or(0);
        body = vec![0; length];
        is_whole = reader.read_exact(&mut body).is_ok();
    } else if head.contains("transfer-encoding: chunked") {
        loop {
            let mut size = String::new();
            let _ = reader.read_line(&mut size);
            let length = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
            let mut chunk = vec![0; length + 2];
            is_whole = reader.read_exact(&mut chunk).is_ok();
            body.extend_from_slice(&chunk[..length]);
            if length == 0 {
                break;
            }
        }
    }
    (String::from_utf8_lossy(&body).into_owned(), is_whole)
}
