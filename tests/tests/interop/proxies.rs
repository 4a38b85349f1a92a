//! Real proxies in front of a real daemon, by the files of `examples/`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http::{Answer, get};
use tidegate_tests::servers::{Proxy, by_debian, by_variable, wait_until};

/// Longer than any of them takes to be ready.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const PAGE: &str = "A page worth limiting.";

/// The arguments of nginx.
pub(crate) const NGINX: [&str; 8] =
    ["-p", ".", "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; master_process off;"];

/// A daemon with the policy of the examples, whose time stands still.
fn daemon() -> Server {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/nginx/policy.yaml");
    daemon_with(&std::fs::read_to_string(path).expect("the examples have a policy"))
}

/// A daemon whose time stands still.
pub(crate) fn daemon_with(policy: &str) -> Server {
    let loaded = Policy::load(&[("policy.yaml", policy)], Merging::Refuse);
    let service = RateLimitService::with_clock(Clock::from(ManualClock::new())).expect("memory");
    service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let settings = Settings { http: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
    serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"))
}

/// A site that answers everything with a page, until the test process ends.
pub(crate) fn site() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for mut socket in listener.incoming().filter_map(Result::ok) {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|read| read == 1)
            {
                head.push(byte[0]);
            }
            let length = PAGE.len();
            let _ = write!(
                socket,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{PAGE}"
            );
        }
    });
    address
}

/// What a proxy can do.
struct Expected {
    /// Adds `RateLimit` headers to the responses of admitted requests.
    tells_allowed: bool,
    /// Its answer when the daemon is gone.
    without_daemon: u16,
}

fn ask(proxy: &Proxy, headers: &str) -> Answer {
    get(proxy.address(), "/?x=1", headers)
}

fn limits_by_key(proxy: &Proxy, daemon: Server, expected: &Expected) {
    // Some listen before they are ready to serve. Requests without a key have a budget of their own.
    wait_until("it serves", TIMEOUT, || ask(proxy, "").body.contains(PAGE));
    for remaining in (0..5).rev() {
        let answer = ask(proxy, "x-api-key: k1\r\n");
        assert_eq!(answer.status, 200, "{answer:?}\n{}", proxy.log_tail());
        assert!(answer.body.contains(PAGE), "{answer:?}");
        assert_eq!(answer.header("retry-after"), None);
        let reply = answer.header("ratelimit");
        assert_eq!(reply.is_some(), expected.tells_allowed, "{answer:?}");
        let expected = format!("\"per_key\";r={remaining};t=12");
        assert!(reply.is_none_or(|reply| reply == expected), "{reply:?}, not {expected}");
    }
    let denied = ask(proxy, "x-api-key: k1\r\n");
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("12")), "{denied:?}");
    assert_eq!(denied.header("ratelimit"), Some("\"per_key\";r=0;t=12"));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per_key\";q=5;w=60"));
    assert!(!denied.body.contains(PAGE), "{denied:?}");
    assert_eq!(ask(proxy, "x-api-key: k2\r\n").status, 200);
    // What clients claim is not believed.
    for claim in [
        "x-forwarded-uri: /free\r\n",
        "x-original-uri: /free\r\n",
        "x-original-url: http://x/free\r\n",
        "x-forwarded-method: OPTIONS\r\nx-original-method: TRACE\r\n",
        "x-forwarded-for: 192.0.2.7\r\n",
        "x-forwarded-host: elsewhere\r\nx-original-host: elsewhere\r\n",
    ] {
        let answer = ask(proxy, &format!("{claim}x-api-key: k1\r\n"));
        assert_eq!(answer.status, 429, "{claim}: {answer:?}\n{}", proxy.log_tail());
    }
    daemon.stop();
    let answer = ask(proxy, "x-api-key: k1\r\n");
    assert_eq!(answer.status, expected.without_daemon, "{answer:?}\n{}", proxy.log_tail());
    assert_eq!(answer.header("ratelimit"), None);
}

pub(crate) fn http(daemon: &Server) -> SocketAddr {
    daemon.http().expect("asked for")
}

#[test]
fn nginx_limits_by_key() {
    let daemon = daemon();
    let addresses = [("127.0.0.1:8080", http(&daemon))];
    let nginx = Proxy::start(&by_debian("nginx"), &NGINX, "nginx", &addresses);
    let expected = Expected { tells_allowed: true, without_daemon: 200 };
    limits_by_key(&nginx, daemon, &expected);
}

/// The files to include into an existing configuration, in front of a service.
#[test]
fn nginx_in_front_of_a_service_limits_by_key() {
    let daemon = daemon();
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    let arguments = NGINX.map(|it| if it == "nginx.conf" { "proxy.conf" } else { it });
    let nginx = Proxy::start(&by_debian("nginx"), &arguments, "nginx", &addresses);
    let expected = Expected { tells_allowed: true, without_daemon: 200 };
    limits_by_key(&nginx, daemon, &expected);
}

/// An unknown domain must not admit all requests.
#[test]
fn nginx_with_an_unknown_domain_serves_no_request() {
    // A daemon that knows no policy.
    let service = RateLimitService::new().expect("memory");
    let settings = Settings { http: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
    let empty = serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"));
    let addresses = [("127.0.0.1:8080", http(&empty))];
    let nginx = Proxy::start(&by_debian("nginx"), &NGINX, "nginx", &addresses);
    assert_eq!(ask(&nginx, "x-api-key: k1\r\n").status, 500);
}

#[test]
fn haproxy_limits_by_key() {
    let daemon = daemon();
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    let haproxy =
        Proxy::start(&by_debian("haproxy"), &["-db", "-f", "haproxy.cfg"], "haproxy", &addresses);
    let expected = Expected { tells_allowed: true, without_daemon: 200 };
    limits_by_key(&haproxy, daemon, &expected);
}

#[test]
fn caddy_limits_by_key() {
    let Some(program) = by_variable("TIDEGATE_CADDY") else { return };
    let daemon = daemon();
    let addresses = [("127.0.0.1:8080", http(&daemon))];
    let caddy = Proxy::start(&program, &["run", "--config", "Caddyfile"], "caddy", &addresses);
    let expected = Expected { tells_allowed: true, without_daemon: 200 };
    limits_by_key(&caddy, daemon, &expected);
}

#[test]
fn traefik_limits_by_key() {
    let Some(program) = by_variable("TIDEGATE_TRAEFIK") else { return };
    let daemon = daemon();
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    let traefik = Proxy::start(&program, &["--configFile=traefik.yaml"], "traefik", &addresses);
    let expected = Expected { tells_allowed: false, without_daemon: 500 };
    limits_by_key(&traefik, daemon, &expected);
}
