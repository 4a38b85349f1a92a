//! A restart under load: SIGTERM, then another daemon at the same address.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_tests::http::Connection;
use tidegate_tests::servers::{Daemon, DaemonSetup, free_port, our_program, wait_until};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::TIMEOUT;
use super::backend::Backend;

const CLIENTS: usize = 4;

/// Requests before the restart, and after it.
const REQUESTS: usize = 400;

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);

struct Load {
    gateway: SocketAddr,
    answered: AtomicUsize,
    is_over: AtomicBool,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Acquire)
    }

    fn count(&self) {
        self.answered.fetch_add(1, Ordering::AcqRel);
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Acquire)
    }
}

/// A client that keeps its connection until the gateway says that it closes it. It repeats connecting until a daemon listens.
fn http1(load: &Load, client: usize) {
    let mut number = 0;
    while load.goes_on() {
        let Ok(mut connection) = Connection::open(load.gateway) else {
            thread::park_timeout(PAUSE);
            continue;
        };
        while load.goes_on() {
            number += 1;
            let call = format!("POST /?id=1-{client}-{number}");
            let answer = connection.ask(&call, "text").expect("no request is lost");
            assert_eq!(answer.status, 200);
            load.count();
            if answer.header("connection") == Some("close") {
                break;
            }
        }
    }
}

async fn http2_connection(gateway: SocketAddr) -> Option<SendRequest<Full<Bytes>>> {
    let socket = TcpStream::connect(gateway).await.ok()?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.ok()?;
    tokio::spawn(connection);
    Some(sender)
}

/// A client that repeats what the gateway says it has not processed (GOAWAY).
async fn http2(load: &Load, client: usize) {
    let mut number = 0;
    while load.goes_on() {
        let Some(mut sender) = http2_connection(load.gateway).await else {
            sleep(PAUSE).await;
            continue;
        };
        while load.goes_on() && sender.ready().await.is_ok() {
            number += 1;
            let uri = format!("http://a/?id=2-{client}-{number}");
            let request = Request::post(uri).body(Full::from("text")).expect("a request");
            match sender.send_request(request).await {
                Ok(answer) => {
                    assert_eq!(answer.status(), 200);
                    let body = answer.into_body().collect().await.expect("no body is cut");
                    assert_eq!(body.to_bytes(), "4");
                    load.count();
                }
                Err(error) => assert!(is_unprocessed(&error), "{error:?}"),
            }
        }
    }
}

/// Whether the protocol says that the request may be repeated.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    // Either it was never sent, or it is above the last stream of a GOAWAY.
    error.is_canceled() || source.contains("not a result of an error")
}

fn start(gateway: SocketAddr, backend: &Backend) -> Daemon {
    let (address, url) = (gateway.to_string(), backend.url());
    let settings =
        [("TIDEGATE__LISTEN__GATEWAY__ADDRESS", &*address), ("TIDEGATE__GATEWAY__UPSTREAM", &*url)];
    Daemon::start(DaemonSetup {
        program: &our_program("tidegate"),
        policy: "domain: api",
        store: "memory",
        settings: &settings,
        has_fake_clock: false,
    })
}

#[test]
fn no_request_fails_when_the_gateway_is_restarted() {
    let backend = Backend::start();
    backend.delay(3);
    let gateway: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let mut daemon = start(gateway, &backend);
    let load = Load { gateway, answered: AtomicUsize::new(0), is_over: AtomicBool::new(false) };
    thread::scope(|scope| {
        let load = &load;
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || http1(load, client))).collect();
        let streams = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                futures_util::future::join_all((0..CLIENTS).map(|client| http2(load, client)))
                    .await;
            });
        });
        for _ in 0..2 {
            let before = load.answered();
            wait_until("requests run", TIMEOUT, || load.answered() > before + REQUESTS);
            daemon.terminate();
            wait_until("the daemon has ended", TIMEOUT, || !daemon.is_running());
            daemon = start(gateway, &backend);
        }
        let before = load.answered();
        wait_until("requests run", TIMEOUT, || load.answered() > before + REQUESTS);
        load.is_over.store(true, Ordering::Release);
        for client in clients {
            client.join().expect("no request failed");
        }
        streams.join().expect("no request failed");
    });
    let requests = backend.requests();
    assert!(requests.values().all(|count| *count == 1), "a request arrived twice");
}
