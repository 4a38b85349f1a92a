//! `tidegate serve` as a service manager runs it.

mod daemon;
mod day;
mod sentinels;

use std::fs;
use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::Duration;

use daemon::{Daemon, TIMEOUT};
use rustix::process::Signal;
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http;
use tidegate_tests::rls::{RateLimitRequest, Unit};
use tidegate_tests::servers::RedisServer;

/// Polls until the condition holds, for at most [`TIMEOUT`].
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..TIMEOUT.as_millis() / PAUSE.as_millis() {
        if is_so() {
            return;
        }
        // A spurious wake-up only polls earlier.
        thread::park_timeout(PAUSE);
    }
    panic!("it never came to {what}");
}

#[test]
fn serves_and_stops_on_sigterm() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&["--threads", "1"]);
        assert_eq!(daemon.ask("CL.THROTTLE user:1 15 30 60"), "*5 :0 :16 :15 :-1 :2 ");
        assert_eq!(http::get(daemon.address("HTTP"), "/healthz", "").status, 200);
        daemon.signal(signal);
        assert_eq!(daemon.end().0, Some(0));
    }
}

#[test]
fn every_port_in_use_is_reported_with_its_flag() {
    let daemon = Daemon::start(&[]);
    let second = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--resp", daemon.address("RESP"), "--http", daemon.address("HTTP")])
        .args(["--grpc", "127.0.0.1:0", "--admin", "off"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let reply = String::from_utf8(second.stderr).unwrap();
    let line = |name: &str, flag: &str| {
        let address = daemon.address(name);
        format!(
            "cannot bind {address} ({name}): address already in use; choose another with --{flag} \
             or listen.{flag}.address\n"
        )
    };
    assert_eq!(reply, format!("error: {}{}", line("RESP", "resp"), line("HTTP", "http")));
}

#[test]
fn sighup_reloads_the_policy() {
    let folder = std::env::temp_dir().join(format!("tidegate-serve-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("policy.yaml");
    let policy = |burst: u32| {
        format!("domain: api\ndescriptors:\n  - key: user\n    rate: 1/min\n    burst: {burst}\n")
    };
    fs::write(&file, policy(5)).unwrap();
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    assert!(daemon.ask("TG.CHECK api user bob").starts_with("*6 :0 :5 :4 "));
    let fresh = folder.join("fresh");
    fs::write(&fresh, policy(9)).unwrap();
    fs::rename(&fresh, &file).unwrap();
    daemon.signal(Signal::HUP);
    daemon.until_it_says("policy reloaded");
    assert!(daemon.ask("TG.CHECK api user ann").starts_with("*6 :0 :9 :8 "));
    fs::write(&file, "domain: api\ndescriptors: 7\n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.until_it_says("policy not reloaded");
    assert!(daemon.ask("TG.CHECK api user ann").starts_with("*6 :0 :9 :7 "));
    fs::remove_dir_all(&folder).unwrap();
}

/// Otherwise the gateway would answer 500, or forward requests without a limit.
#[test]
fn a_policy_has_to_tell_which_domain_the_gateway_enforces() {
    let folder = Folder::new("domains");
    let domain = |name: &str| {
        format!(
            "domain: {name}\nrequests: {{rules: [{{path: /, descriptors: [{{entries: [{{key: all, value: all}}]}}]}}]}}\n\
             descriptors: [{{key: all, rate: 1/h}}]\n"
        )
    };
    folder.file("policies/api.yaml", &domain("api"));
    let policies = folder.0.join("policies").display().to_string();
    let with_policies = ["--config", &policies, "--upstream", "http://127.0.0.1:9"];
    let named = ("TIDEGATE__GATEWAY__DOMAIN", "aip");
    for arguments in [&with_policies[..], &with_policies[2..]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output =
            command.arg("serve").args(arguments).envs([named]).output().expect("a program");
        let text = String::from_utf8(output.stderr).expect("text");
        let missing = "gateway.domain: the policy has no domain \"aip\" with `requests`";
        assert!(output.status.code() == Some(1) && text.contains(missing), "{text}");
    }

    let any = [("TIDEGATE__LISTEN__GATEWAY__ADDRESS", "127.0.0.1:0")];
    let off = ["--resp", "off", "--http", "off", "--grpc", "off", "--admin", "off"];
    let daemon = Daemon::serving(&[&off, &with_policies[..]].concat(), &any, 1);
    folder.file("policies/web.yaml", &domain("web"));
    daemon.signal(Signal::HUP);
    let line = daemon.until_it_says("policy not reloaded");
    let expected = "the domains \"api\" and \"web\" both have `requests`; name the one that";
    assert!(line.contains(expected), "{line}");
    let get = || http::get(daemon.address("gateway"), "/", "").status;
    assert_eq!((get(), get()), (502, 429), "still limited");
    fs::remove_file(folder.0.join("policies/web.yaml")).expect("ours");
    folder.file("policies/api.yaml", "domain: api\ndescriptors: [{key: all, rate: 1/h}]\n");
    daemon.signal(Signal::HUP);
    daemon.until_it_says("no domain has `requests`: the gateway limits nothing");
    assert_eq!((get(), get()), (502, 502));
}

/// Another week start means other windows, and so other keys.
#[test]
fn a_reload_after_which_keys_start_afresh_is_logged() {
    let folder = std::env::temp_dir().join(format!("tidegate-afresh-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("policy.yaml");
    let policy = |day: &str| {
        format!(
            "domain: api\ndescriptors:\n  - {{key: user, rate: 5/week, algorithm: fixed_window, \
             calendar: {{week_starts: {day}}}}}\n"
        )
    };
    fs::write(&file, policy("monday")).unwrap();
    let daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    let fresh = folder.join("fresh");
    fs::write(&fresh, policy("sunday")).unwrap();
    fs::rename(&fresh, &file).unwrap();
    daemon.signal(Signal::HUP);
    daemon.until_it_says("has weeks from sunday in UTC instead of weeks from monday in UTC");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_invalid_policy_prevents_the_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--config", "no/such/policy.yaml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no/such/policy.yaml"));
}

/// `tidegate check --url` charges in the daemon.
#[test]
fn check_can_use_a_daemon() {
    let folder = std::env::temp_dir().join(format!("tidegate-url-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("p.yaml");
    fs::write(&file, "{domain: api, descriptors: [{key: user, rate: 1/h}]}").expect("a file");
    let daemon = Daemon::start(&["--config", &file.display().to_string()]);
    let url = format!("http://{}", daemon.address("HTTP"));
    let check = |descriptor: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["check", "--url", &url, "--domain", "api", "--descriptor", descriptor]);
        let output = command.output().expect("the program is built");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    };
    assert_eq!(check("user=bob"), (Some(0), "allowed: 0 of 1 left\n".to_owned()));
    let (status, text) = check("user=bob");
    assert!(
        status == Some(1) && text.starts_with("denied: 0 of 1 left; try again after"),
        "{text}"
    );
    let explain = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["explain", "--url", &url, "--domain", "api"]).args(more);
        let output = command.output().expect("the program is built");
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        // Without the line breaks, which depend on the width of the terminal.
        (output.status.code(), text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (status, text) = explain(&["--descriptor", "user=bob"]);
    assert_eq!(status, Some(0), "{text}");
    for reply in ["denied: 0 of 1 left", "user <- binds", "rule user, for any value", "enforced"] {
        assert!(text.contains(reply), "{reply}: {text}");
    }
    // A date, not a count of microseconds.
    assert!(text.contains("one more is allowed at 2"), "{text}");
    let (_, text) = explain(&["--descriptor", "user=bob", "--json"]);
    assert!(text.contains("\"why\": \"rule user"), "{text}");
    let (_, text) = explain(&["--descriptor", "nothing=x"]);
    assert!(text.contains("no limit: no rule of the domain"), "{text}");
    let (status, text) = check("nonsense");
    assert!(status == Some(2) && text.contains("expected a descriptor"), "{text}");
    drop(daemon);
    let (status, text) = check("user=bob");
    assert!(status == Some(2) && text.contains("cannot reach"), "{text}");
    fs::remove_dir_all(&folder).expect("the folder is ours");
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .expect("the program is built");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

/// A folder that is removed with the test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// A file in it.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn printed_settings_can_be_loaded_again() {
    let folder = Folder::new("print");
    let variables = [("TIDEGATE__STORE__DEADLINE", "7ms")];
    let (status, first) = run(&["--print-config", "--threads", "3"], &variables);
    assert_eq!(status, Some(0), "{first}");
    assert!(first.contains("deadline: 7ms  # from TIDEGATE__STORE__DEADLINE"), "{first}");
    assert!(first.contains("threads: 3  # from --threads"), "{first}");
    let file = folder.file("settings.yaml", &first);
    let (status, second) = run(&["--print-config", "--settings", &file], &[]);
    assert_eq!(status, Some(0), "{second}");
    assert!(second.contains("threads: 3  # from "), "{second}");
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  # from").next().unwrap_or("").to_owned()).collect()
    };
    assert_eq!(values(&first), values(&second));
}

#[test]
fn invalid_settings_prevent_the_start_with_their_place() {
    let folder = Folder::new("wrong");
    let file = folder.file("settings.yaml", "store:\n  urll: memory\n");
    let (status, text) = run(&["--settings", &file], &[]);
    let expected =
        format!("error: {file}:2:3: unknown setting \"urll\"; did you mean url? (at store.urll)\n");
    assert_eq!((status, text), (Some(1), expected));
    for (name, value) in [("BACKEND_TYPE", "memcache"), ("CONFIG_TYPE", "GRPC_XDS_SOTW")] {
        let (status, text) = run(&["--compat", "envoy"], &[(name, value)]);
        assert_eq!(status, Some(1));
        assert!(text.starts_with(&format!("error: {name}={value} is not supported: ")), "{text}");
    }
}

/// Whatever is wrong: with JSON logging on, each line is JSON, wherever the format was chosen.
#[test]
fn failures_to_start_are_json_if_the_log_is() {
    let folder = Folder::new("failures");
    let wrong = folder.file("wrong.yaml", "store:\n  urll: memory\nlog: {format: json}\n");
    let policy =
        folder.file("policy.yaml", "domain: api\ndescriptors:\n  - {key: a, rate: fast}\n");
    let json = [("TIDEGATE__LOG__FORMAT", "json")];
    for (arguments, variables, words) in [
        (&["--settings", &wrong][..], &[][..], "unknown setting \"urll\""),
        (&["--settings", "no/such/file"], &json, "cannot read no/such/file"),
        (&["--http", "localhost:8080"], &json, "did you mean 127.0.0.1:8080?"),
        (&["--config", &policy], &json, "expected a rate"),
        (&["--resp", "0.0.0.0:0"], &json, "open to other machines without a password"),
    ] {
        let (status, text) = run(arguments, variables);
        assert_eq!(status, Some(1), "{text}");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let line = lines.last().expect("a line");
        assert_eq!((&line["level"], &line["event"]), (&"ERROR".into(), &"failed".into()));
        assert!(line["message"].as_str().is_some_and(|it| it.contains(words)), "{line}");
    }
}

#[test]
fn redis_clients_need_the_password_of_the_file() {
    let folder = Folder::new("password");
    let file = folder.file("secret", "s3cret\nnot this\n");
    let daemon = Daemon::start(&["--password-file", &file]);
    assert!(daemon.ask("PING").starts_with("-NOAUTH"));
    assert_eq!(daemon.ask("AUTH s3cret\r\nPING"), "+OK +PONG ");
    let empty = folder.file("empty", "\n");
    let (status, text) = run(&["--password-file", &empty], &[]);
    assert_eq!(status, Some(1));
    let expected = format!("listen.resp.password_file: the first line of {empty} is empty");
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn an_unreadable_token_names_its_setting() {
    let variables = [("TIDEGATE__LISTEN__ADMIN__TOKEN_FILE", "admin-token")];
    let (status, text) = run(&[], &variables);
    assert_eq!(status, Some(1));
    let begin = "error: listen.admin.token_file: cannot read admin-token (in ";
    assert!(text.starts_with(begin) && text.contains("No such file"), "{text}");
}

#[test]
fn a_refused_address_is_repeated_with_its_flag() {
    let (status, text) = run(&["--http", "localhost:8080"], &[]);
    let expected = "error: --http: expected an address with a port such as 127.0.0.1:8080, \
                    unix:PATH, or off, found \"localhost:8080\"; did you mean 127.0.0.1:8080?\n";
    assert_eq!((status, &*text), (Some(1), expected));
}

#[test]
fn resp_beyond_loopback_without_a_password_does_not_start() {
    let others = ["--http", "off", "--grpc", "off", "--admin", "off"];
    let arguments = [&["--resp", "0.0.0.0:0"], &others[..]].concat();
    let (status, text) = run(&arguments, &[]);
    let expected = "error: listen.resp.address: RESP on 0.0.0.0:0 is open to other machines without \
                    a password; set listen.resp.password_file (--password-file), listen on \
                    127.0.0.1, or set listen.resp.allow_unauthenticated to true\n";
    assert_eq!((status, &*text), (Some(1), expected));
    let allowed = [("TIDEGATE__LISTEN__RESP__ALLOW_UNAUTHENTICATED", "true")];
    let daemon = Daemon::serving(&arguments, &allowed, 1);
    daemon.until_it_says("accepts clients of other machines without a password");
    assert_eq!(daemon.ask("CL.THROTTLE user:1 15 30 60"), "*5 :0 :16 :15 :-1 :2 ");
    assert!(daemon.ask("DEL user:1").starts_with("-NOPERM"));
}

/// With `--compat envoy` the daemon listens on all addresses, and refuses calls there that name or change
/// keys.
#[test]
fn compat_envoy_neither_shows_nor_changes_keys_beyond_loopback() {
    let folder = Folder::new("exposed");
    let policy = folder.file("p.yaml", "{domain: api, descriptors: [{key: user, rate: 1/h}]}");
    let ports = [("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")];
    let arguments = ["--compat", "envoy", "--config", &policy, "--resp", "off"];
    let daemon = Daemon::serving(&arguments, &ports, 3);
    assert!(daemon.address("admin").starts_with("0.0.0.0:"), "as envoyproxy/ratelimit does");
    daemon.until_it_says("admin on 0.0.0.0");
    let question = r#"{"domain":"api","descriptors":[{"user":"bob"}]}"#;
    let ask = |path: &str, headers: &str| {
        http::ask(daemon.address("HTTP"), &format!("POST {path}"), headers, question).status
    };
    assert_eq!((ask("/v1/check", ""), ask("/v1/check", "")), (200, 429));
    assert_eq!(ask("/v1/refund", ""), 403);
    assert_eq!(ask("/v1/check", ""), 429, "nothing was returned");
    denials_carry_retry_after(&daemon);
    let hot = daemon.admin("GET /v1/hot-keys");
    assert!(hot.status == 403 && hot.body.contains("listen.admin.token_file"), "{hot:?}");
    assert_eq!(daemon.admin("GET /rlconfig").status, 200);
    drop(daemon);

    let token = folder.file("token", "s3cret\n");
    let settings = [
        ("TIDEGATE__LISTEN__ADMIN__TOKEN_FILE", &*token),
        ("TIDEGATE__LISTEN__HTTP__TOKEN_FILE", &token),
        ("TIDEGATE__LISTEN__ADMIN__KEY_VALUES", "hash"),
    ];
    let daemon = Daemon::serving(&arguments, &[&ports[..], &settings[..]].concat(), 3);
    let ask = |path: &str, headers: &str| {
        http::ask(daemon.address("HTTP"), &format!("POST {path}"), headers, question).status
    };
    let known = "authorization: Bearer s3cret\r\n";
    assert_eq!((ask("/v1/check", ""), ask("/v1/refund", "")), (200, 401));
    assert_eq!((ask("/v1/refund", known), ask("/v1/check", "")), (200, 200));
    assert_eq!(daemon.admin("GET /v1/hot-keys").status, 401);
    let hot = http::ask(daemon.address("admin"), "GET /v1/hot-keys", known, "");
    assert!(hot.status == 200 && hot.body.contains("api/user=81b637d8fcd2c6da"), "{hot:?}");
}

/// As Envoy and callers of `/json` get them: the key `bob` is exhausted for an hour.
fn denials_carry_retry_after(daemon: &Daemon) {
    let question = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}"#;
    let denied = http::ask(daemon.address("HTTP"), "POST /json", "", question);
    let seconds = |wait: Option<&str>| wait.and_then(|wait| wait.parse::<u64>().ok());
    let is_wait = |wait: Option<&str>| seconds(wait).is_some_and(|it| (1..=3_600).contains(&it));
    assert!(denied.status == 429 && is_wait(denied.header("retry-after")), "{denied:?}");
    let mut client = GrpcClient::connect(daemon.address("gRPC").parse().expect("an address"));
    let denied =
        client.should_rate_limit(&RateLimitRequest::one("api", "user", "bob")).expect("an answer");
    assert!(!denied.is_ok() && is_wait(denied.header("retry-after")), "{denied:?}");
}

/// Conditions that weaken limits are logged.
#[test]
fn conditions_of_redis_are_logged_at_the_start() {
    let redis = RedisServer::builder().arg("maxmemory", "64mb");
    let redis = redis.arg("maxmemory-policy", "allkeys-lru").start();
    let daemon = Daemon::start(&["--store", &redis.url()]);
    let line = daemon.until_it_says("maxmemory-policy is allkeys-lru");
    assert!(line.contains(" WARN ") && line.contains(&redis.address()), "{line}");
    assert!(line.contains("event=\"store_finding\""), "{line}");
    daemon.until_it_says("persistence is off");
    redis.command(&["ACL", "SETUSER", "default", "-info"]);
    let daemon = Daemon::start(&["--store", &redis.url()]);
    daemon.until_it_says("cannot check the eviction policy, persistence, role and version: INFO");
    assert_eq!(daemon.admin("GET /readyz").status, 200);
}

/// The first signal drains connections, the second ends the process.
#[test]
fn a_second_signal_ends_it_at_once() {
    let mut daemon = Daemon::start(&[]);
    // A client that has started a request and does not complete it.
    let mut slow = http::connect(daemon.address("HTTP"));
    slow.write_all(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n").unwrap();
    let busy = "tidegate_connections{listener=\"HTTP\"} 1";
    until("be busy", || daemon.admin("GET /metrics").body.contains(busy));
    daemon.signal(Signal::TERM);
    daemon.until_it_says("draining connections");
    daemon.signal(Signal::TERM);
    daemon.until_it_says("stopped before all connections were closed");
    assert_eq!(daemon.end().0, Some(1));
}

/// Load balancers see it first, and requests are answered meanwhile.
#[test]
fn the_daemon_is_not_ready_before_it_stops() {
    let mut daemon = Daemon::start_in(&[], &[("TIDEGATE__LIMITS__LINGER", "1h")]);
    assert_eq!(daemon.admin("GET /readyz").status, 200);
    daemon.signal(Signal::TERM);
    daemon.until_it_says("not ready, still serving");
    assert_eq!(daemon.admin("GET /readyz").status, 503);
    assert_eq!(daemon.ask("CL.THROTTLE user:1 15 30 60"), "*5 :0 :16 :15 :-1 :2 ");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().0, Some(0));
}

#[test]
fn systemd_is_notified() {
    let folder = Folder::new("notify");
    let policy = folder.file("p.yaml", "{domain: api, descriptors: [{key: user, rate: 1/h}]}");
    let path = folder.0.join("notify.sock");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("not zero");
    let said = move || {
        let mut words = [0; 256];
        // A wait may be interrupted on a busy machine.
        let length = loop {
            match socket.recv(&mut words) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("in time"),
            }
        };
        String::from_utf8(words[..length].to_vec()).expect("text")
    };
    let path = path.display().to_string();
    let variables = [("NOTIFY_SOCKET", &*path), ("WATCHDOG_USEC", "200000")];
    let mut daemon = Daemon::start_in(&["--config", &policy], &variables);
    assert_eq!(said(), "READY=1");
    assert_eq!(said(), "WATCHDOG=1");
    daemon.signal(Signal::HUP);
    let next = || loop {
        let words = said();
        if words != "WATCHDOG=1" {
            return words;
        }
    };
    assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next(), "READY=1");
    daemon.signal(Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(daemon.end().0, Some(0));
}

/// The code block of a guide that contains this text.
fn block(guide: &str, start: &str) -> String {
    let text = guide.split("```").find(|block| block.contains(start)).expect(start);
    text.split_once('\n').expect("the name of a language").1.to_owned()
}

/// The deployment of the guide, with other addresses.
#[test]
fn a_deployment_of_envoyproxy_starts_unchanged() {
    let guide = include_str!("../../../../docs/guide/replace-envoyproxy-ratelimit.md");
    let folder = Folder::new("envoy");
    folder.file("ratelimit/config/config.yaml", &block(guide, "domain: mongo_cps"));
    let root = folder.0.display().to_string();
    let redis = RedisServer::start();
    let place = format!("127.0.0.1:{}", redis.port());
    let written = block(guide, "RUNTIME_ROOT=");
    let lines = written.lines().filter_map(|line| line.split_once('='));
    let mut variables: Vec<(&str, &str)> = lines.collect();
    assert_eq!(variables.len(), 7, "{written}");
    for (name, value) in &mut variables {
        match *name {
            "RUNTIME_ROOT" => *value = &root,
            "REDIS_URL" => *value = &place,
            _ => {}
        }
    }
    for host in ["HOST", "GRPC_HOST", "DEBUG_HOST"] {
        variables.push((host, "127.0.0.1"));
    }
    for port in ["PORT", "GRPC_PORT", "DEBUG_PORT"] {
        variables.push((port, "0"));
    }
    // Redis is unavailable: the start does not wait for it.
    redis.kill();
    let mut daemon = Daemon::serving(&["--resp", "off"], &variables, 3);
    let rules = daemon.admin("GET /rlconfig").body;
    let line = "mongo_cps.database_users: unit=SECOND requests_per_unit=500, shadow_mode: false, \
                quota_mode: false\n";
    assert!(rules.contains(line), "{rules}");
    // Requests are decided by their fallback.
    assert_eq!(daemon.admin("GET /readyz").status, 200);
    let loaded = "ratelimit_service_config_load_success 1\n";
    assert!(daemon.admin("GET /metrics").body.contains(loaded));
    redis.restart();
    decide_as_theirs(&daemon);
    daemon.signal(Signal::TERM);
    let (code, log) = daemon.end();
    assert_eq!(code, Some(0));
    assert!(!log.contains("has no effect"), "{log}");
}

/// The limit of the guide, over gRPC and `/json`, on one counter.
fn decide_as_theirs(daemon: &Daemon) {
    let address = daemon.address("gRPC").parse().expect("an address");
    let mut client = GrpcClient::connect(address);
    let question = RateLimitRequest::one("mongo_cps", "database", "users");
    // Without the store, the answer has the limit of this node alone.
    let mut answer = None;
    until("be decided by Redis", || {
        let reply = client.should_rate_limit(&question).expect("never an error");
        let limit = reply.statuses.first().and_then(|status| status.current_limit.as_ref());
        let is_theirs = limit.is_some_and(|limit| limit.requests_per_unit == 500);
        answer = is_theirs.then_some(reply);
        answer.is_some()
    });
    let answer = answer.expect("a decision");
    let [status] = &*answer.statuses else { panic!("{answer:?}") };
    let limit = status.current_limit.as_ref().expect("a limit");
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(limit.unit(), Unit::Second);
    assert!((1..=499).contains(&status.limit_remaining), "{answer:?}");
    let body = r#"{"domain":"mongo_cps","descriptors":[{"entries":[{"key":"database","value":"users"}]}]}"#;
    let ask = || http::ask(daemon.address("HTTP"), "POST /json", "", body);
    let answer = ask();
    let reply = r#""currentLimit":{"requestsPerUnit":500,"unit":"SECOND"}"#;
    assert!(answer.body.contains(reply), "{answer:?}");
}

/// Nodes with one secret enforce the same keys, which clients cannot predict.
#[test]
fn a_secret_chooses_the_keys_that_are_enforced() {
    let folder = Folder::new("secret");
    let policy = "{domain: api, descriptors: [{key: user, rate: 1/day, enforce: 50%}]}";
    let policy = folder.file("policy.yaml", policy);
    let settings = |name: &str, secret: &str| {
        let file = folder.file(&format!("{name}.txt"), secret);
        folder.file(&format!("{name}.yaml"), &format!("policy: {{enforce_secret_file: {file}}}\n"))
    };
    let (one, other) =
        (settings("one", "the first of two secrets"), settings("other", &"x".repeat(20)));
    let enforced = |settings: Option<&str>| -> Vec<bool> {
        let mut arguments = vec!["--threads", "1", "--config", &policy];
        arguments.extend(settings.iter().flat_map(|file| ["--settings", file]));
        let daemon = Daemon::start(&arguments);
        let ask = |user: usize| daemon.ask(&format!("TG.CHECK api user u{user}"));
        let is_denied = |user: usize| {
            assert!(ask(user).starts_with("*6 :0 "), "the first is never denied");
            ask(user).starts_with("*6 :1 ")
        };
        (0..40).map(is_denied).collect()
    };
    let [first, again, second, public] =
        [Some(&*one), Some(&*one), Some(&*other), None].map(enforced);
    assert_eq!(first, again, "two nodes with one secret");
    assert!(first != second && first != public && second != public, "{first:?} {second:?}");
    let (status, text) = run(&["--print-config", "--settings", &one], &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("enforce_secret_file: ") && !text.contains("of two secrets"), "{text}");
    let short = settings("short", "too short");
    let (status, text) = run(&["--settings", &short], &[]);
    assert!(status == Some(1) && text.contains("has fewer than 16 bytes"), "{text}");
}

/// `notify-reload` needs systemd 253; Debian 12 and RHEL 9 have 252.
#[test]
fn the_unit_of_the_guide_is_for_systemd_252() {
    let page = include_str!("../../../../docs/guide/run-the-daemon.md");
    let unit = page.split("```ini\n").nth(1).and_then(|it| it.split("```").next());
    let lines: Vec<&str> = unit.expect("a unit").lines().collect();
    for line in ["Type=notify", "ExecReload=/bin/kill -HUP $MAINPID"] {
        assert!(lines.contains(&line), "{line}: {lines:?}");
    }
}
