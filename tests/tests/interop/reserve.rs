//! Three gateways, one Redis: a part of a fleet's capacity is kept for critical requests, also when a gateway
//! is killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_tests::http::{Answer, connect};
use tidegate_tests::servers::{
    Daemon, DaemonSetup, RedisServer, comes_true, our_program, wait_until,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The gateways renew what they hold three times in this time.
const TTL: Duration = Duration::from_secs(6);

const POLICY: &str = "
domain: api
classes: [{name: critical}, {name: other}]
requests:
  rules:
    - {path: /pay, class: critical, descriptors: [{entries: [{key: fleet, value: all}]}]}
    - {path: /list, class: other, descriptors: [{entries: [{key: fleet, value: all}]}]}
descriptors:
  - {key: fleet, in_flight: 100, reserve: 20%, ttl: 6s}
";

/// A service that answers no request before it is told to.
#[derive(Default)]
struct Slow {
    reached: AtomicUsize,
    /// Of those, the ones that the third gateway forwarded.
    by_third: AtomicUsize,
    may_answer: Mutex<bool>,
    reply: Condvar,
}

impl Slow {
    fn start(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let service = Arc::clone(self);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let service = Arc::clone(&service);
                thread::spawn(move || service.serve(socket));
            }
        });
        address
    }

    fn serve(&self, mut socket: TcpStream) {
        let reading = socket.try_clone().expect("a socket");
        for line in BufReader::new(reading).lines().map_while(Result::ok) {
            if line.eq_ignore_ascii_case("x-gateway: 2") {
                self.by_third.fetch_add(1, Ordering::SeqCst);
            }
            if !line.is_empty() {
                continue;
            }
            self.reached.fetch_add(1, Ordering::SeqCst);
            let may_answer = self.may_answer.lock().expect("no panic");
            drop(self.reply.wait_while(may_answer, |may_answer| !*may_answer));
            if socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }

    fn answer(&self) {
        *self.may_answer.lock().expect("no panic") = true;
        self.reply.notify_all();
    }

    fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }
}

/// A request that waits for its answer; `None` if its gateway died.
fn send(gateway: SocketAddr, number: usize, path: &str) -> JoinHandle<Option<Answer>> {
    let mut socket = connect(gateway);
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nX-Gateway: {number}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).expect("sent");
    thread::spawn(move || {
        let mut text = String::new();
        let _ = socket.read_to_string(&mut text);
        (!text.is_empty()).then(|| Answer::read(&text))
    })
}

/// Whether one more critical request reaches the service.
fn is_admitted(gateway: SocketAddr, slow: &Slow) -> bool {
    let before = slow.reached();
    let call = send(gateway, 0, "/pay");
    wait_until("an answer or a request in progress", TIMEOUT, || {
        call.is_finished() || slow.reached() > before
    });
    slow.reached() > before
}

/// Sends critical requests until so many have taken the places of a killed gateway.
fn regain(gateway: SocketAddr, slow: &Slow, places: usize) -> Vec<JoinHandle<Option<Answer>>> {
    let mut regained = Vec::new();
    wait_until("the killed gateway's places are free", TIMEOUT, || {
        let before = slow.reached();
        let call = send(gateway, 0, "/pay");
        wait_until("an answer or a request in progress", TIMEOUT, || {
            call.is_finished() || slow.reached() > before
        });
        if !call.is_finished() {
            regained.push(call);
        }
        regained.len() >= places
    });
    regained
}

#[test]
fn ov_05_three_gateways_keep_a_reserve_and_a_killed_one_returns_its_part() {
    let redis = RedisServer::start();
    let slow = Arc::new(Slow::default());
    let upstream = format!("http://{}", slow.start());
    let settings = [
        ("TIDEGATE__LISTEN__GATEWAY__ADDRESS", "127.0.0.1:0"),
        ("TIDEGATE__GATEWAY__UPSTREAM", &*upstream),
        // On a busy machine, a late Redis would count as unavailable, and each gateway would fill its share.
        ("TIDEGATE__STORE__DEADLINE", "10s"),
    ];
    let program = our_program("tidegate");
    let setup = DaemonSetup {
        program: &program,
        policy: POLICY,
        store: &redis.url(),
        settings: &settings,
        has_fake_clock: false,
    };
    let daemons = [(); 3].map(|()| Daemon::start(setup));
    let gateways = [0, 1, 2].map(|number: usize| daemons[number].transport("gateway"));
    let storm = |path: &str, requests: usize| -> Vec<_> {
        (0..requests).map(|number| send(gateways[number % 3], number % 3, path)).collect()
    };

    let mut waiting = Vec::new();
    let mut shed = |path: &str, requests: usize, admitted: usize, total: usize| {
        let calls = storm(path, requests);
        wait_until(&format!("{total} are in progress"), TIMEOUT, || slow.reached() >= total);
        let has_all = |calls: &[JoinHandle<_>]| {
            calls.iter().filter(|call| call.is_finished()).count() >= requests - admitted
        };
        wait_until("the others are refused", TIMEOUT, || has_all(&calls));
        assert_eq!(slow.reached(), total, "{path}");
        let (refused, held): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(JoinHandle::is_finished);
        for call in refused {
            let answer = call.join().expect("no panic").expect("an answer");
            assert_eq!(answer.status, 503, "{answer:?}");
            assert!(answer.header("retry-after").is_some());
            assert_eq!(answer.header("ratelimit"), None);
        }
        assert_eq!(held.len(), admitted);
        waiting.extend(held);
    };
    shed("/list", 150, 80, 80);
    shed("/pay", 60, 20, 100);

    let missing = slow.by_third.load(Ordering::SeqCst);
    assert!((1..100).contains(&missing), "the third gateway forwarded {missing}");
    // Live gateways renew their leases, so no place becomes free after the time of a lease.
    assert!(
        !comes_true(TTL + TTL / 2, || is_admitted(gateways[0], &slow)),
        "a place was free too early"
    );

    daemons[2].kill();
    let regained = regain(gateways[0], &slow, missing);
    let refused = send(gateways[1], 1, "/pay").join().expect("no panic").expect("an answer");
    assert_eq!((refused.status, slow.reached()), (503, 100 + missing));

    slow.answer();
    let answers: Vec<_> = waiting.into_iter().map(|call| call.join().expect("no panic")).collect();
    let served = answers.iter().flatten().filter(|answer| answer.status == 200).count();
    assert_eq!(served, 100 - missing, "what live gateways held");
    for call in regained {
        assert_eq!(call.join().expect("no panic").expect("an answer").status, 200);
    }
}
