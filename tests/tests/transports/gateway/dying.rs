//! Addresses whose process ends while requests run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tidegate_server::{Gateway, Upstream};
use tidegate_tests::http::ask;
use tidegate_tests::servers::Certificates;

use super::Front;

/// Every connection is accepted, and closed without a response once it has a request. The socket of
/// a killed process does the same for a moment.
const DYING: u8 = 1;
/// A connection that has carried a request is closed with the next one.
const STALE: u8 = 2;

/// A service that closes its connections depending on its state.
struct Mortal {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: AtomicU8,
    /// The first lines of all requests.
    requests: Mutex<Vec<String>>,
}

impl Mortal {
    fn start(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (shared, tls) = (Arc::clone(&own), tls.clone());
                thread::spawn(move || match tls {
                    // Like a killed process, dropping it sends no close_notify.
                    Some(tls) => {
                        let tls = ServerConnection::new(tls).expect("a certificate");
                        shared.serve(StreamOwned::new(tls, socket))
                    }
                    None => shared.serve(socket),
                });
            }
        });
        Self { address, shared }
    }

    fn set(&self, state: u8) {
        self.shared.state.store(state, Ordering::Release);
    }

    /// How often a request has arrived.
    fn times(&self, line: &str) -> usize {
        let requests = self.shared.requests.lock().expect("no panic");
        requests.iter().filter(|request| request.starts_with(line)).count()
    }
}

impl Shared {
    fn serve(&self, mut stream: impl Read + Write) -> Option<()> {
        for served in 0.. {
            let head = head(&mut stream)?;
            let length = head.split_once("content-length: ").map_or(0, |(_, rest)| {
                rest.split("\r\n").next().and_then(|text| text.parse().ok()).unwrap_or(0)
            });
            stream.read_exact(&mut vec![0; length]).ok()?;
            self.requests.lock().expect("no panic").push(head);
            match self.state.load(Ordering::Acquire) {
                DYING => return None,
                STALE if served > 0 => return None,
                _ => {}
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
            stream.flush().ok()?;
        }
        None
    }
}

fn head(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// What services with certificates need.
fn tls(certificates: &Certificates) -> Arc<ServerConfig> {
    let chain = CertificateDer::from_pem_file(&certificates.server.certificate);
    let key = PrivateKeyDer::from_pem_file(&certificates.server.key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("what ring can do")
        .with_no_client_auth()
        .with_single_cert(vec![chain.expect("a certificate")], key);
    Arc::new(config.expect("a pair"))
}

/// A gateway with one worker, which has a kept connection to each of two services.
fn front(services: &[Mortal; 2], certificates: Option<&Certificates>) -> Front {
    let scheme = if certificates.is_some() { "https" } else { "http" };
    let urls = services.each_ref().map(|it| format!("{scheme}://{}", it.address));
    let mut upstream = Upstream::new("api", &urls).expect("URLs");
    upstream.tls.authority = certificates.map(|it| it.authority.clone());
    let front = Front::set(
        "",
        |gateway| *gateway = Gateway::new(upstream),
        |settings| settings.threads = NonZeroUsize::MIN,
    );
    while services.iter().any(|service| service.times("POST /warm ") == 0) {
        assert_eq!(ask(front.address(), "POST /warm", "", "x").status, 200);
    }
    front
}

fn times(services: &[Mortal; 2], line: &str) -> usize {
    services.iter().map(|service| service.times(line)).sum()
}

/// The process may accept connections and end them until the system has removed it.
#[test]
fn a_request_that_is_safe_to_repeat_survives_an_address_that_ends_every_connection() {
    let certificates = Certificates::fresh();
    for certificates in [None, Some(&certificates)] {
        let services = [(), ()].map(|()| Mortal::start(certificates.map(tls)));
        let front = front(&services, certificates);
        services[0].set(DYING);
        for number in 0..20 {
            let answer = ask(front.address(), &format!("GET /{number}"), "", "");
            assert_eq!(answer.status, 200, "{number} {answer:?}");
        }
        assert!(services[0].times("GET ") > 0, "no request was in progress at the address");
        for number in 0..20 {
            let call = format!("POST /{number}");
            ask(front.address(), &call, "", "x");
            assert_eq!(times(&services, &format!("{call} ")), 1, "{call}");
        }
    }
}

#[test]
fn a_request_that_is_safe_to_repeat_survives_stale_connections_to_two_addresses() {
    let services = [(), ()].map(|()| Mortal::start(None));
    let front = front(&services, None);
    services.iter().for_each(|service| service.set(STALE));
    assert_eq!(ask(front.address(), "GET /", "", "").status, 200);
    assert_eq!(times(&services, "GET / "), 3);
    // It has replaced one of the two connections; the other one is stale still.
    let statuses = [1, 2, 3].map(|number| {
        let call = format!("POST /{number}");
        let status = ask(front.address(), &call, "", "x").status;
        assert_eq!(times(&services, &format!("{call} ")), 1, "{call}");
        status
    });
    assert!(statuses.contains(&502), "{statuses:?}");
}

/// Repetitions are at most a tenth of the requests and ten per second, counted over ten seconds.
#[test]
fn repetitions_are_bounded_if_every_address_ends_every_connection() {
    let services = [(), ()].map(|()| Mortal::start(None));
    let front = front(&services, None);
    services.iter().for_each(|service| service.set(DYING));
    let mut most = 0;
    for number in 0..400 {
        let call = format!("GET /{number}");
        assert_eq!(ask(front.address(), &call, "", "").status, 502);
        most = most.max(times(&services, &format!("{call} ")));
    }
    // The first request may use the reused connections of both addresses.
    assert!((2..=3).contains(&most), "{most}");
    let repeated = times(&services, "GET ") - 400;
    assert!((100..=150).contains(&repeated), "{repeated}");
}
