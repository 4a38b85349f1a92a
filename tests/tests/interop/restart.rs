//! Restarts under load, with a listening socket that outlives the daemon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_tests::http::Answer;
use tidegate_tests::servers::{Folder, our_program, wait_until};

use crate::proxies::{TIMEOUT, site};

/// Hands its standard input on as the first socket, as systemd does.
const ACTIVATE: &str = r#"exec 3<&0 </dev/null; LISTEN_PID=$$ exec "$@""#;

/// A daemon on sockets of the test; killed when dropped.
struct Activated(Child);

impl Activated {
    fn start(socket: OwnedFd, name: &str, upstream: SocketAddr, folder: &Folder) -> Self {
        let upstream = format!("http://{upstream}");
        let child = Command::new("sh")
            .args(["-c", ACTIVATE, "activate"])
            .arg(our_program("tidegate"))
            .args(["gateway", "--upstream", &upstream, "--admin", "off"])
            .env("LISTEN_FDS", "1")
            .env("LISTEN_FDNAMES", name)
            .current_dir(folder.path())
            .stdin(Stdio::from(socket))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect("every system has sh"))
    }

    /// Ends it with SIGTERM, and waits until it has ended.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("it runs");
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        // Fails only for what has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One request on a connection of its own.
fn ask(address: SocketAddr) -> Result<u16, String> {
    let mut socket = TcpStream::connect(address).map_err(|error| format!("refused: {error}"))?;
    socket.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    socket.write_all(request).map_err(|error| format!("not sent: {error}"))?;
    let mut text = String::new();
    socket.read_to_string(&mut text).map_err(|error| format!("no answer: {error}"))?;
    if text.is_empty() { Err("closed".into()) } else { Ok(Answer::read(&text).status) }
}

/// Three daemons, one after the other, and between them none. Connections that are opened meanwhile wait in
/// the socket.
#[test]
fn a_restart_with_an_inherited_socket_refuses_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (upstream, folder) = (site(), Folder::create());
    let socket = || OwnedFd::from(listener.try_clone().expect("an open socket"));
    let start = || Activated::start(socket(), "gateway", upstream, &folder);
    let (served, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (failures, last) = (Mutex::new(Vec::new()), OnceLock::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    match ask(address) {
                        Ok(200) => drop(served.fetch_add(1, Ordering::AcqRel)),
                        other => failures.lock().expect("no panic").push(format!("{other:?}")),
                    }
                }
            });
        }
        for _ in 0..3 {
            let daemon = start();
            let before = served.load(Ordering::Acquire);
            wait_until("it serves", TIMEOUT, || served.load(Ordering::Acquire) > before + 50);
            daemon.stop();
        }
        is_over.store(true, Ordering::Release);
        // Clients that still wait are served by the last one.
        last.set(start()).map_err(drop).expect("set once");
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{} of {served:?}: {failures:?}", failures.len());
}

/// The socket of a Unix listener, whose file stays.
#[test]
fn unix_sockets_are_inherited_and_keep_their_file() {
    let folder = Folder::create();
    let path = folder.path().join("gateway.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a path");
    let daemon = Activated::start(listener.into(), "gateway", site(), &folder);
    let mut socket = std::os::unix::net::UnixStream::connect(&path).expect("a listener");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    socket.write_all(request).expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    assert_eq!(Answer::read(&text).status, 200);
    daemon.stop();
    assert!(path.exists());
}

#[test]
fn a_socket_without_a_listeners_name_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let folder = Folder::create();
    let mut daemon = Activated::start(listener.into(), "tidegate.socket", site(), &folder);
    let status = daemon.0.wait().expect("it ends");
    let mut text = String::new();
    daemon.0.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(!status.success());
    assert!(text.contains("socket 0 is named \"tidegate.socket\"; name it http, grpc,"), "{text}");
}
