//! Attempts to bypass a limit through real proxies, by the files of `examples/`.
//!
//! Each quota is used up first. Then no way to write the same request may be served, whatever status
//! the proxy answers with.

use std::io::{Read, Write};
use std::net::SocketAddr;

use tidegate::policy::{Merging, Policy};
use tidegate::store::redis::RedisConfig;
use tidegate_server::{Answers, RateLimitService, Server, Settings, serve};
use tidegate_tests::http::{connect, get};
use tidegate_tests::servers::{Envoy, Proxy, by_debian, by_variable, envoy_program, wait_until};

use crate::envoy::{CONFIG, daemon_with as grpc_daemon, patient};
use crate::proxies::{NGINX, PAGE, TIMEOUT, daemon_with, http, site};

/// A day's quota of three for everything.
const POLICY: &str = "
domain: site
requests:
  trusted_proxies: 1
  rules:
    - path: /login.html
      descriptors: [{entries: [{key: route, path_template: true}]}]
    - path: /key.html
      descriptors: [{entries: [{key: header, header: x-api-key}]}]
    - path: /token.html
      descriptors: [{entries: [{key: token, api_key: true}]}]
    - path: /field.html
      descriptors: [{entries: [{key: field, query: user}]}]
    - path: /cookie.html
      descriptors: [{entries: [{key: cookie, cookie: sid}]}]
    - path: /shed.html
      descriptors: [{entries: [{key: shed, value: all}]}]
descriptors:
  - {key: route, rate: 3/day}
  - {key: header, rate: 3/day}
  - {key: token, rate: 3/day}
  - {key: field, rate: 3/day}
  - {key: cookie, rate: 3/day}
  - {key: shed, rate: 3/day, status: 503}
";

/// Without its store, a service with this policy denies one page with 503.
const FAIL_CLOSED: &str = "
domain: site
requests:
  rules:
    - path: /closed.html
      descriptors: [{entries: [{key: closed, value: all}]}]
descriptors:
  - {key: closed, rate: 3/day, on_store_failure: deny}
";

/// Ways to write `/login.html` that common servers serve as such.
const PATHS: &[&str] = &[
    "/login.html",
    "//login.html",
    "/./login.html",
    "/x/../login.html",
    "/%6cogin.html",
    "/login%2Ehtml",
    "/login.html#",
    "/login.html#x",
    "/#/../login.html",
    "/x//../login.html",
    "//x/../login.html",
    "/%2e/login.html",
    "/x/%2E%2e/login.html",
    "/x%2f..%2flogin.html",
    "/%2flogin.html",
    "/../login.html",
    "/..%2flogin.html",
    "/%252e/login.html",
    "/%256cogin.html",
    "/login.html;a",
    "/;/login.html",
    "/x/..;/login.html",
    "/login.html%3Ba",
    "\\login.html",
    "/\\login.html",
    "/%5clogin.html",
    "/login.html%00",
    "/login.html?",
    "/login.html?a=/free.html",
    "/login.html\t",
    "http://HOST/login.html",
    "http://HOST//login.html",
    "*",
];

/// What clients may say of the request, and what is too much for a script.
const CLAIMS: &[&str] = &[
    "X-Original-URI: /free.html\r\n",
    "X-Original-URL: /free.html\r\n",
    "X-Original-URL: http://HOST/free.html\r\n",
    "X-Original-URI: /free.html\r\nX-Original-URL: /login.html\r\n",
    "X-Forwarded-Uri: /free.html\r\n",
    "X-Forwarded-Uri: /free.html\r\nX-Forwarded-Uri: /free.html\r\n",
    "X-Forwarded-Method: OPTIONS\r\nX-Original-Method: TRACE\r\n",
    "X-Forwarded-Host: elsewhere\r\nX-Original-Host: elsewhere\r\n",
    "X-Rewrite-URL: /free.html\r\n",
    "Connection: close, X-Forwarded-Uri, X-Forwarded-Method\r\n",
    "MANY",
];

const KEYS: &[&str] = &[
    "X-API-Key: real\r\n",
    "X-API-Key:\r\nX-API-Key: real\r\n",
    "X-API-Key: made-up\r\nX-API-Key: real\r\n",
    "X-API-Key: real\r\nX-API-Key: made-up\r\n",
    "X-API-Key: made-up, real\r\n",
    "X-API-Key: ,real\r\n",
    "x-api-KEY:real\r\n",
    "X-API-Key: real\r\nMANY",
];

const TOKENS: &[&str] = &[
    "Authorization: Bearer real\r\n",
    "Authorization: Bearer\treal\r\n",
    "Authorization: bEARER   real \r\n",
    "Authorization: Bearer real\r\nX-API-Key: made-up\r\n",
    "X-API-Key: made-up\r\nAuthorization: Bearer real\r\n",
    "Authorization: Bearer real other\r\n",
    // `real:xx`, then as lenient servers read it: without padding, and with a digit of another alphabet.
    "Authorization: Basic cmVhbDp4eA==\r\n",
    "Authorization: Basic cmVhbDp4eA\r\n",
    "Authorization: Basic cmVh-bDp4eA==\r\n",
    "Authorization: Bearer made-up\r\nAuthorization: Bearer real\r\n",
    "Authorization:\r\nAuthorization: Bearer real\r\n",
];

const FIELDS: &[&str] = &[
    "/field.html?user=real",
    "/field.html?user=made-up&user=real",
    "/field.html?user=real&user=made-up",
    "/field.html?user=&user=real",
    "/field.html?%75ser=r%65al",
    "/field.html?user=made-up;user=real",
    "/field.html?a;user=real",
    "/field.html?user=real#1",
];

const COOKIES: &[&str] = &[
    "Cookie: sid=real\r\n",
    "Cookie: sid=made-up; sid=real\r\n",
    "Cookie: sid=real; sid=made-up\r\n",
    "Cookie: sid=; sid=real\r\n",
    "Cookie: sid=made-up\r\nCookie: sid=real\r\n",
    "Cookie: x=1\r\nCookie: sid=real\r\n",
    "Cookie: sid=\"real\"\r\n",
    "Cookie: sid=r%65al\r\n",
];

/// Whether a request is served, whatever else the answer is.
fn is_served(address: SocketAddr, target: &str, headers: &str) -> bool {
    let host = address.to_string();
    let many: String = (0..95).map(|number| format!("X-Extra-{number}: v\r\n")).collect();
    let expand = |text: &str| text.replace("HOST", &host).replace("MANY", &many);
    let own =
        if headers.starts_with("Host:") { String::new() } else { format!("Host: {host}\r\n") };
    let close = if headers.starts_with("Connection:") { "" } else { "Connection: close\r\n" };
    let (target, headers) = (expand(target), expand(headers));
    let mut socket = connect(address);
    // The proxy may refuse it before it has read everything.
    let _ = write!(socket, "GET {target} HTTP/1.1\r\n{own}{close}{headers}\r\n");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.contains(PAGE) || answer.contains("hello")
}

/// Uses up a quota of three, and then tries everything else.
fn holds(address: SocketAddr, requests: impl IntoIterator<Item = (String, String)>) {
    let mut requests = requests.into_iter().peekable();
    let (target, headers) = requests.peek().cloned().expect("at least the plain one");
    let plain = (0..4).map(|_| is_served(address, &target, &headers)).collect::<Vec<_>>();
    assert_eq!(plain, [true, true, true, false], "{target} {headers}");
    for (target, headers) in requests {
        assert!(!is_served(address, &target, &headers), "{target:?} {headers:?} is served");
    }
}

/// A page is refused with 503, and with the seconds until a retry.
fn is_shed(address: SocketAddr, path: &str) {
    let answer = get(address, path, "");
    assert_eq!(answer.status, 503, "{answer:?}");
    let wait = answer.header("retry-after").and_then(|wait| wait.parse().ok());
    assert!(wait.is_some_and(|wait: u64| wait > 0), "{answer:?}");
}

/// Exhausts a limit with `status: 503`, which is refused as one with 429 is.
fn sheds(address: SocketAddr) {
    let paths = ["/shed.html", "//shed.html", "/shed.html?x=1"];
    holds(address, paths.map(|path| (path.to_owned(), String::new())));
}

/// Tries everything through a proxy that asks at `/v1/auth`.
fn withstands(proxy: &Proxy) {
    let address = proxy.address();
    for page in ["login", "key", "token", "field", "cookie", "shed", "free"] {
        proxy.write(&format!("site/{page}.html"), PAGE);
    }
    wait_until("it serves", TIMEOUT, || is_served(address, "/free.html", ""));
    let same = |target: &str, headers: &str| (target.to_owned(), headers.to_owned());
    let long = format!("Host: {}\r\n", "a".repeat(9_000));
    let paths = PATHS.iter().map(|path| same(path, ""));
    let claims = CLAIMS.iter().map(|claim| same("/login.html", claim));
    let sizes = [
        same("/login.html", &long),
        same("/login.html", &format!("X-API-Key: {}\r\n", "a".repeat(15_000))),
        same(&format!("/login.html?{}", "a".repeat(15_000)), ""),
    ];
    holds(address, paths.chain(claims).chain(sizes));
    let key = |key: &&str| same("/key.html", key);
    holds(address, KEYS.iter().map(key).chain([same("/key.html", &format!("{long}{}", KEYS[0]))]));
    holds(address, TOKENS.iter().map(|token| same("/token.html", token)));
    holds(address, FIELDS.iter().map(|field| same(field, "")));
    holds(address, COOKIES.iter().map(|cookie| same("/cookie.html", cookie)));
    sheds(address);
    is_shed(address, "/shed.html");
    assert!(is_served(address, "/free.html", ""), "it still serves: {}", proxy.log_tail());
}

/// A daemon that never reaches its Redis.
fn daemon_without_store() -> Server {
    let config = RedisConfig::new("redis://127.0.0.1:1").expect("a URL").start_without_server();
    let service = RateLimitService::connect(config).expect("an outage at start is no error");
    let loaded = Policy::load(&[("policy.yaml", FAIL_CLOSED)], Merging::Refuse);
    service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let settings = Settings { http: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
    serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"))
}

/// While the store is unavailable, `on_store_failure: deny` denies behind a proxy as well.
fn fails_closed(proxy: &Proxy) {
    let address = proxy.address();
    for page in ["closed", "free"] {
        proxy.write(&format!("site/{page}.html"), PAGE);
    }
    wait_until("it serves", TIMEOUT, || is_served(address, "/free.html", ""));
    for _ in 0..5 {
        is_shed(address, "/closed.html");
    }
    assert!(is_served(address, "/free.html", ""), "it still serves: {}", proxy.log_tail());
}

#[test]
fn nginx_refuses_what_is_denied_because_the_store_is_unavailable() {
    let daemon = daemon_without_store();
    let addresses = [("127.0.0.1:8080", http(&daemon))];
    fails_closed(&Proxy::start(&by_debian("nginx"), &NGINX, "nginx", &addresses));
}

#[test]
fn haproxy_refuses_what_is_denied_because_the_store_is_unavailable() {
    let daemon = daemon_without_store();
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    fails_closed(&Proxy::start(&by_debian("haproxy"), &HAPROXY, "haproxy", &addresses));
}

#[test]
fn caddy_refuses_what_is_denied_because_the_store_is_unavailable() {
    let Some(program) = by_variable("TIDEGATE_CADDY") else { return };
    let daemon = daemon_without_store();
    let addresses = [("127.0.0.1:8080", http(&daemon))];
    fails_closed(&Proxy::start(&program, &["run", "--config", "Caddyfile"], "caddy", &addresses));
}

#[test]
fn traefik_refuses_what_is_denied_because_the_store_is_unavailable() {
    let Some(program) = by_variable("TIDEGATE_TRAEFIK") else { return };
    let daemon = daemon_without_store();
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    fails_closed(&Proxy::start(&program, &["--configFile=traefik.yaml"], "traefik", &addresses));
}

#[test]
fn no_request_bypasses_a_limit_through_nginx() {
    let daemon = daemon_with(POLICY);
    let addresses = [("127.0.0.1:8080", http(&daemon))];
    withstands(&Proxy::start(&by_debian("nginx"), &NGINX, "nginx", &addresses));
}

const HAPROXY: [&str; 3] = ["-db", "-f", "haproxy.cfg"];

#[test]
fn no_request_bypasses_a_limit_through_haproxy() {
    let daemon = daemon_with(POLICY);
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    withstands(&Proxy::start(&by_debian("haproxy"), &HAPROXY, "haproxy", &addresses));
}

/// What the script does not decide is not served.
#[test]
fn haproxy_refuses_requests_when_its_script_fails() {
    let daemon = daemon_with(POLICY);
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    let edits = [("local received = txn.http:req_get_headers()", "error('planted')")];
    let program = by_debian("haproxy");
    let haproxy = Proxy::start_edited(&program, &HAPROXY, "haproxy", &addresses, &edits);
    assert!(!is_served(haproxy.address(), "/free.html", ""));
}

#[test]
fn no_request_bypasses_a_limit_through_caddy() {
    let Some(program) = by_variable("TIDEGATE_CADDY") else { return };
    let daemon = daemon_with(POLICY);
    let addresses = [("127.0.0.1:8080", http(&daemon))];
    withstands(&Proxy::start(&program, &["run", "--config", "Caddyfile"], "caddy", &addresses));
}

#[test]
fn no_request_bypasses_a_limit_through_traefik() {
    let Some(program) = by_variable("TIDEGATE_TRAEFIK") else { return };
    let daemon = daemon_with(POLICY);
    let addresses = [("127.0.0.1:8080", http(&daemon)), ("127.0.0.1:8001", site())];
    withstands(&Proxy::start(&program, &["--configFile=traefik.yaml"], "traefik", &addresses));
}

/// Paths that Envoy resolves to another one and forwards so: the service is not asked for `/login.html`.
const OTHER_IN_ENVOY: &[&str] = &["/x//../login.html"];

/// Envoy's descriptors come as it builds them, so what is not normalised there is not at all.
#[test]
fn no_request_bypasses_a_limit_through_envoy() {
    let Some(program) = envoy_program() else {
        eprintln!("\n!!! LEFT OUT: no Envoy; `cargo xtask test` installs it\n");
        return;
    };
    let policy = "
domain: edge
descriptors:
  - {key: api_key, rate: 3/day}
  - {key: api_key, value: anonymous, rate_limit: {unlimited: true}}
  - {key: api_key, match: {glob: '*,*'}, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: path, value: /login.html, rate: 3/day}
";
    let example = include_str!("../../../examples/envoy/policy.yaml");
    assert!(
        example.contains("match: {glob: \"*,*\"}"),
        "the example has the rule for several keys"
    );
    let daemon = grpc_daemon(&RateLimitService::new().expect("memory"), policy, Answers::default());
    let grpc = daemon.grpc().expect("asked for");
    let envoy = Envoy::start(&program, &patient(CONFIG), tidegate_tests::servers::service(), grpc);
    let address = envoy.address();
    wait_until("Envoy is connected", TIMEOUT, || is_served(address, "/free.html", ""));
    let same = |target: &str, headers: &str| (target.to_owned(), headers.to_owned());
    let paths = PATHS.iter().filter(|path| !OTHER_IN_ENVOY.contains(path));
    let paths = paths.map(|path| same(path, ""));
    let claims = CLAIMS.iter().map(|claim| same("/login.html", claim));
    // One budget for all queries.
    let queries = (0..5).map(|number| same(&format!("/login.html?x={number}"), ""));
    let long = format!("Host: {}\r\n", "a".repeat(9_000));
    let long_host = same("/login.html", &long);
    holds(address, paths.chain(claims).chain(queries).chain([long_host]));
    let key = |key: &&str| same("/", key);
    holds(address, KEYS.iter().map(key).chain([same("/", &format!("{long}{}", KEYS[0]))]));
    assert!(is_served(address, "/free.html", ""), "it still serves");
}

/// Envoy that asks at `/v1/auth` with `ext_authz`, by the configuration of the guide.
#[test]
fn no_request_bypasses_a_limit_through_envoy_with_ext_authz() {
    let Some(program) = envoy_program() else {
        eprintln!("\n!!! LEFT OUT: no Envoy; `cargo xtask test` installs it\n");
        return;
    };
    let daemon = daemon_with(POLICY);
    let guide = include_str!("../../../docs/guide/behind-nginx.md");
    let start = "- name: envoy.filters.http.ext_authz";
    let filter = guide.split("```yaml\n").find(|block| block.starts_with(start)).expect(start);
    let filter = filter.split("```").next().expect("text before the end");
    let filter: String = filter.lines().map(|line| format!("                  {line}\n")).collect();
    let config = EXT_AUTHZ.replace("FILTER\n", &filter).replace("timeout: 0.25s", "timeout: 30s");
    let envoy = Envoy::start(&program, &config, tidegate_tests::servers::service(), http(&daemon));
    let address = envoy.address();
    wait_until("Envoy is connected", TIMEOUT, || is_served(address, "/free.html", ""));
    let same = |target: &str, headers: &str| (target.to_owned(), headers.to_owned());
    let long = format!("Host: {}\r\n", "a".repeat(9_000));
    let paths = PATHS.iter().map(|path| same(path, ""));
    let claims = CLAIMS.iter().map(|claim| same("/login.html", claim));
    holds(address, paths.chain(claims).chain([same("/login.html", &long)]));
    holds(address, KEYS.iter().map(|key| same("/key.html", key)));
    holds(address, TOKENS.iter().map(|token| same("/token.html", token)));
    holds(address, FIELDS.iter().map(|field| same(field, "")));
    holds(address, COOKIES.iter().map(|cookie| same("/cookie.html", cookie)));
    sheds(address);
    assert_eq!(get(address, "/shed.html", "").status, 503);
    assert!(is_served(address, "/free.html", ""), "it still serves");
}

/// What stands around the filter.
const EXT_AUTHZ: &str = r#"
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 9901}}
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: 10000}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                http_filters:
FILTER
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: service
                      domains: ["*"]
                      routes: [{match: {prefix: /}, route: {cluster: service}}]
  clusters:
    - name: service
      load_assignment:
        cluster_name: service
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8000}}}
    - name: tidegate
      load_assignment:
        cluster_name: tidegate
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}
"#;
