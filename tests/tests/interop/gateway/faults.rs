//! One of three addresses is killed, hung or slowed while requests run.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tidegate_server::{Edge, Gateway, Route, Server, Upstream};
use tidegate_tests::http::Connection;
use tidegate_tests::servers::wait_until;

use super::backend::Backend;
use super::{TIMEOUT, address, gateway};

/// Clients of the service with the fault, and of the other one.
const CLIENTS: usize = 8;
const OTHERS: usize = 2;

/// Requests of each client, half of them GET and half POST.
const REQUESTS: usize = 500;

/// So many requests were sent when the fault begins.
const BEFORE: usize = 1_000;

/// What became of a run.
struct Run {
    /// Requests that failed: method and id, and their status.
    failed: Vec<(String, u16)>,
    /// How often each request arrived, by address.
    arrived: Vec<HashMap<String, usize>>,
}

/// Runs requests while something happens to the first of three addresses.
fn run(fault: impl FnOnce(&Backend), end: impl FnOnce(&Backend)) -> Run {
    let backends = [Backend::start(), Backend::start(), Backend::start()];
    let other = Backend::start();
    let server = front(&backends, &other);
    let (sent, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (failed, others) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, sent, failed) = (&server, &sent, &failed);
                scope.spawn(move || {
                    let mut connection = connect(server);
                    for number in 0..REQUESTS {
                        let id = client * REQUESTS + number;
                        // A request with a body is never repeated.
                        let (method, body) =
                            if number % 2 == 0 { ("GET", "") } else { ("POST", "text") };
                        let call = format!("{method} /api?id={id}");
                        let answer = connection.ask(&call, body).expect("an answer");
                        if answer.status != 200 {
                            let request = format!("{method} {id}");
                            failed.lock().expect("no panic").push((request, answer.status));
                        }
                        if answer.header("connection") == Some("close") {
                            connection = connect(server);
                        }
                        sent.fetch_add(1, Ordering::AcqRel);
                    }
                })
            })
            .collect();
        for _ in 0..OTHERS {
            scope.spawn(|| {
                let mut connection = connect(&server);
                while !is_over.load(Ordering::Acquire) {
                    let answer = connection.ask("POST /other?id=1", "text").expect("an answer");
                    assert_eq!(answer.status, 200, "the other service is not affected");
                    others.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        wait_until("requests run", TIMEOUT, || sent.load(Ordering::Acquire) >= BEFORE);
        fault(&backends[0]);
        for client in clients {
            client.join().expect("no panic");
        }
        is_over.store(true, Ordering::Release);
    });
    assert!(others.into_inner() > 0);
    end(&backends[0]);
    let arrived = backends.iter().map(Backend::requests).collect();
    let failed = failed.into_inner().expect("no panic");
    Run { failed, arrived }
}

fn front(backends: &[Backend], other: &Backend) -> Server {
    let urls: Vec<String> = backends.iter().map(Backend::url).collect();
    let mut api = Upstream::new("api", &urls).expect("URLs");
    api.head_timeout = Duration::from_secs(1);
    api.eject_for = Duration::from_secs(2);
    let other = Upstream::new("other", &[other.url()]).expect("a URL");
    let routes = vec![
        Route::parse("/api", 0).expect("a route"),
        Route::parse("/other", 1).expect("a route"),
    ];
    gateway(Gateway { upstreams: vec![api, other], routes, ..empty() })
}

fn empty() -> Gateway {
    Gateway {
        upstreams: Vec::new(),
        routes: Vec::new(),
        domain: None,
        trusted: Vec::new(),
        edge: Edge::default(),
    }
}

fn connect(server: &Server) -> Connection {
    Connection::open(address(server)).expect("a listener")
}

impl Run {
    fn times(&self, request: &str) -> usize {
        self.arrived.iter().filter_map(|requests| requests.get(request)).sum()
    }

    /// No request arrived twice, except one that is safe to repeat and was in progress at the address with the
    /// fault; and every request that was answered arrived.
    fn assert_nothing_is_sent_twice(&self, may_repeat: bool) {
        for id in 0..CLIENTS * REQUESTS {
            let method = if (id % REQUESTS).is_multiple_of(2) { "GET" } else { "POST" };
            let request = format!("{method} {id}");
            let times = self.times(&request);
            let is_repeated = may_repeat
                && method == "GET"
                && times == 2
                && self.arrived[0].get(&request) == Some(&1);
            assert!(times <= 1 || is_repeated, "{request} arrived {times} times");
            let has_failed = self.failed.iter().any(|(failed, _)| *failed == request);
            assert!(times >= 1 || has_failed, "{request} was not answered");
        }
    }
}

#[test]
fn an_address_that_is_killed_loses_no_request_that_is_safe_to_repeat() {
    let run = run(|backend| backend.signal(Signal::KILL), |_| {});
    run.assert_nothing_is_sent_twice(true);
    for (request, status) in &run.failed {
        // It was in progress at the address: whether it was carried out is not known.
        let is_lost = request.starts_with("POST ") && *status == 502;
        assert!(is_lost, "{request} got {status}: {:?}", run.failed);
    }
    assert!(run.failed.len() <= CLIENTS, "{:?}", run.failed);
}

#[test]
fn an_address_that_hangs_is_left_out() {
    let resume = |backend: &Backend| {
        backend.signal(Signal::CONT);
        // It takes up what arrived meanwhile.
        backend.delay(0);
    };
    let run = run(|backend| backend.signal(Signal::STOP), resume);
    run.assert_nothing_is_sent_twice(false);
    let late = run.failed.iter().filter(|(_, status)| *status == 504).count();
    assert_eq!(run.failed.len(), late, "{:?}", run.failed);
    // At most those in progress at each of a few attempts, of thousands.
    assert!(run.failed.len() <= 4 * CLIENTS, "{:?}", run.failed);
}

#[test]
fn an_address_that_is_slow_gets_fewer_requests() {
    let run = run(|backend| backend.delay(200), |backend| backend.delay(0));
    assert!(run.failed.is_empty(), "{:?}", run.failed);
    run.assert_nothing_is_sent_twice(false);
    let counts: Vec<usize> = run.arrived.iter().map(HashMap::len).collect();
    assert!(counts[0] < counts[1] && counts[0] < counts[2], "{counts:?}");
}
