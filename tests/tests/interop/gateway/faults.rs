//! One of three addresses is killed, hung or slowed while requests run.

#![expect(clippy::disallowed_methods, reason = "latencies are printed")]

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidegate_server::{Gateway, Route, Server, Upstream};
use tidegate_tests::http::Connection;
use tidegate_tests::servers::{Certificates, wait_until};

use super::backend::{Backend, Speech};
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
    /// Latencies of the requests to the other service, before the fault and from then on.
    others: [Vec<Duration>; 2],
}

/// Runs requests while something happens to the first of three addresses.
fn run(speech: Speech, fault: impl FnOnce(&Backend), end: impl FnOnce(&Backend)) -> Run {
    let certificates = (speech == Speech::Https).then(Certificates::fresh);
    let backends = [(), (), ()].map(|()| Backend::speaking(speech, certificates.as_ref()));
    let other = Backend::start();
    let server = front(&backends, &other, certificates.as_ref());
    let (sent, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let has_fault = AtomicBool::new(false);
    let (failed, others) = (Mutex::new(Vec::new()), Mutex::new([Vec::new(), Vec::new()]));
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
                    let (began, part) =
                        (Instant::now(), usize::from(has_fault.load(Ordering::Acquire)));
                    let answer = connection.ask("POST /other?id=1", "text").expect("an answer");
                    assert_eq!(answer.status, 200, "the other service is not affected");
                    others.lock().expect("no panic")[part].push(began.elapsed());
                }
            });
        }
        wait_until("requests run", TIMEOUT, || sent.load(Ordering::Acquire) >= BEFORE);
        has_fault.store(true, Ordering::Release);
        fault(&backends[0]);
        for client in clients {
            client.join().expect("no panic");
        }
        is_over.store(true, Ordering::Release);
    });
    end(&backends[0]);
    let arrived = backends.iter().map(Backend::requests).collect();
    let failed = failed.into_inner().expect("no panic");
    let others = others.into_inner().expect("no panic");
    Run { failed, arrived, others }
}

fn front(backends: &[Backend], other: &Backend, certificates: Option<&Certificates>) -> Server {
    let urls: Vec<String> = backends.iter().map(Backend::url).collect();
    let mut api = Upstream::new("api", &urls).expect("URLs");
    api.head_timeout = Duration::from_secs(1);
    api.eject_for = Duration::from_secs(2);
    api.tls.authority = certificates.map(|it| it.authority.clone());
    api.tls.http2 = false;
    let other = Upstream::new("other", &[other.url()]).expect("a URL");
    let routes = vec![
        Route::parse("/api", 0).expect("a route"),
        Route::parse("/other", 1).expect("a route"),
    ];
    gateway(Gateway { upstreams: vec![api, other.clone()], routes, ..Gateway::new(other) })
}

fn connect(server: &Server) -> Connection {
    Connection::open(address(server)).expect("a listener")
}

impl Run {
    /// Prints how the other service did; `cargo xtask bench gateway` measures it.
    fn print_others(&self, fault: &str) {
        let [without, with] = self.others.each_ref().map(|latencies| {
            assert!(!latencies.is_empty(), "the other service was asked");
            let mut latencies = latencies.clone();
            latencies.sort_unstable();
            latencies[(latencies.len() - 1) * 99 / 100]
        });
        println!("p99 of the other service: {without:?}, with an address {fault} {with:?}");
    }

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
    for speech in [Speech::Http, Speech::Https, Speech::H2c] {
        let run = run(speech, |backend| backend.signal(Signal::KILL), |_| {});
        run.print_others("killed");
        run.assert_nothing_is_sent_twice(true);
        for (request, status) in &run.failed {
            // It was in progress at the address: whether it was carried out is not known.
            let is_lost = request.starts_with("POST ") && *status == 502;
            assert!(is_lost, "{speech:?}: {request} got {status}: {:?}", run.failed);
        }
        assert!(run.failed.len() <= CLIENTS, "{speech:?}: {:?}", run.failed);
    }
}

#[test]
fn an_address_that_hangs_is_left_out() {
    let resume = |backend: &Backend| {
        backend.signal(Signal::CONT);
        // It takes up what arrived meanwhile.
        backend.delay(0);
    };
    let run = run(Speech::Http, |backend| backend.signal(Signal::STOP), resume);
    run.print_others("hung");
    run.assert_nothing_is_sent_twice(false);
    let late = run.failed.iter().filter(|(_, status)| *status == 504).count();
    assert_eq!(run.failed.len(), late, "{:?}", run.failed);
    // At most those in progress at each of a few attempts, of thousands.
    assert!(run.failed.len() <= 4 * CLIENTS, "{:?}", run.failed);
}

#[test]
fn an_address_that_is_slow_gets_fewer_requests() {
    let run = run(Speech::Http, |backend| backend.delay(200), |backend| backend.delay(0));
    run.print_others("slowed");
    assert!(run.failed.is_empty(), "{:?}", run.failed);
    run.assert_nothing_is_sent_twice(false);
    let counts: Vec<usize> = run.arrived.iter().map(HashMap::len).collect();
    assert!(counts[0] < counts[1] && counts[0] < counts[2], "{counts:?}");
}
