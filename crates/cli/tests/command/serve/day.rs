//! A day of operation, in both formats of the log, compared with the guide. Times, ports and the reason
//! that the system gives for a lost connection are masked.

use super::*;

const GUIDE: &str = include_str!("../../../../../docs/guide/logging.md");

const POLICY: &str = "domain: api\ndescriptors:\n  - key: user\n    rate: 100/min\n";

/// A daemon, and its log so far.
struct Day {
    daemon: Daemon,
    log: Vec<String>,
}

impl Day {
    /// Reads the log up to the next line with these words.
    fn until(&mut self, words: &str) {
        loop {
            let line = self.daemon.next_line();
            let is_found = line.contains(words);
            self.log.push(line);
            if is_found {
                return;
            }
        }
    }

    fn change(&mut self, call: &str, body: &str) {
        let answer = http::ask(self.daemon.address("admin"), call, "", body);
        assert_eq!(answer.status, 200, "{answer:?}");
        self.until("admin_change");
    }
}

/// The log of a day: start, reloads, changes, an outage, shutdown.
fn day(format: &str) -> Vec<String> {
    let folder = Folder::new(&format!("day-{format}"));
    folder.file("policy.yaml", POLICY);
    // Without persistence there would be a finding, at a time that depends on the machine.
    let redis = RedisServer::builder().arg("appendonly", "yes").start();
    let any = "127.0.0.1:0";
    let arguments = ["--resp", any, "--http", any, "--grpc", "off", "--admin", any];
    let url = redis.url();
    let rest = ["--config", "policy.yaml", "--store", &url, "--threads", "1"];
    // The deadline is so long that a busy machine does not look like a slow Redis.
    let variables = [("TIDEGATE__LOG__FORMAT", format), ("TIDEGATE__STORE__DEADLINE", "5s")];
    let arguments = [&arguments[..], &rest].concat();
    let (daemon, _out) = Daemon::spawn(&folder.0, &arguments, &variables);
    let mut day = Day { daemon, log: Vec::new() };
    day.until("\"started\"");
    let started = day.log.last().expect("a line").replace("\":\"", "=\"");
    let listeners = started.split("listeners=\"").nth(1).and_then(|it| it.split('"').next());
    day.daemon.listens_on(listeners.expect("addresses"));

    let replace = |text: &str| {
        let fresh = folder.file("fresh", text);
        fs::rename(fresh, folder.0.join("policy.yaml")).expect("ours");
    };
    let other = POLICY.replace("100/min", "200/min");
    replace(&other);
    day.until("policy_reloaded");
    replace(&POLICY.replace("100/min", "fast"));
    day.until("policy_finding");
    replace(&other);
    day.until("policy_reloaded");

    let wish = r#"{"limit":"api/user#","percent":50,"seconds":900,"reason":"incident 7"}"#;
    day.change("PUT /v1/overrides", wish);
    day.change("PUT /v1/kill-switch", r#"{"domain":"api","reason":"incident 7"}"#);
    day.change("DELETE /v1/kill-switch", r#"{"domain":"api"}"#);
    day.change("DELETE /v1/overrides", r#"{"limit":"api/user#","reason":"incident 7 is over"}"#);
    day.change("PUT /v1/log-level", r#"{"level":"debug"}"#);
    assert!(day.daemon.ask("TG.CHECK apj user bob").starts_with("*6 :0 "));
    day.until("unknown_domain");
    day.change("PUT /v1/log-level", r#"{"level":"info"}"#);

    redis.kill();
    until("miss Redis", || {
        day.daemon.ask("TG.CHECK api user bob");
        day.daemon.admin("GET /v1/status").body.contains("degraded")
    });
    day.until("store_unavailable");
    redis.restart();
    day.until("store_recovered");

    day.daemon.signal(Signal::TERM);
    let (code, rest) = day.daemon.end();
    assert_eq!(code, Some(0), "{rest}");
    day.log.extend(rest.lines().map(ToOwned::to_owned));
    day.log
}

/// The line without what differs from run to run.
fn masked(line: &str) -> String {
    let time = if line.starts_with('{') { "{\"timestamp\":\"" } else { "" };
    let rest = line.strip_prefix(time).expect(line);
    let end = rest.find('Z').expect(line);
    let mut line = format!("{time}TIME{}", &rest[end..]);
    for number in ["127.0.0.1:", "seconds=", "\"seconds\":"] {
        let parts: Vec<&str> = line.split(number).collect();
        let (first, rest) = parts.split_first().expect("at least one");
        let rest = rest.iter().map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        line = [*first].into_iter().chain(rest).collect::<Vec<_>>().join(number);
    }
    // Broken pipe, connection refused, connection reset: whichever request came first.
    let reason = line.split_once("the store is unavailable: 127.0.0.1:: ");
    let masked = reason.and_then(|(before, after)| {
        let end = after.find(" event=").or_else(|| after.find("\",\"event\""))?;
        Some(format!("{before}{}", &after[end..]))
    });
    masked.unwrap_or(line)
}

/// The block of the guide that has these words.
fn written(words: &str) -> Vec<String> {
    block(GUIDE, words).lines().map(ToOwned::to_owned).collect()
}

#[test]
fn the_guide_has_the_log_of_a_day() {
    let mask = |lines: &[String]| lines.iter().map(|line| masked(line)).collect::<Vec<_>>();
    let mut other = Vec::new();
    for (format, words) in [("text", "INFO started"), ("json", "\"message\":\"started\"")] {
        let log = day(format);
        if mask(&log) != mask(&written(words)) {
            other.push(log.join("\n"));
        }
    }
    assert!(other.is_empty(), "docs/guide/logging.md should have:\n{}", other.join("\n\n"));
}

#[test]
fn only_what_differs_between_runs_is_masked() {
    let text = "2026-02-03T10:00:00.123Z  WARN the store is unavailable: 127.0.0.1:6379: broken pipe \
                event=\"store_unavailable\" seconds=12 limits=1";
    let expected = "TIMEZ  WARN  event=\"store_unavailable\" seconds= limits=1";
    assert_eq!(masked(text), expected);
    let json = "{\"timestamp\":\"2026-02-03T10:00:00Z\",\"seconds\":7,\"at\":\"127.0.0.1:80 b\"}";
    assert_eq!(masked(json), "{\"timestamp\":\"TIMEZ\",\"seconds\":,\"at\":\"127.0.0.1: b\"}");
}
