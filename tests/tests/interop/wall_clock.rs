//! The wall clock of a running daemon is corrected by a day: calendar windows, overrides that end at a date and
//! the times in the log follow it, and buckets do not notice.

#![expect(clippy::disallowed_methods, reason = "the wall clock is what is tested")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use tidegate_tests::http;
use tidegate_tests::servers::{Daemon, DaemonSetup, our_program, wait_until};

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const DAY: i64 = 86_400;

fn seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a present clock");
    i64::try_from(since.as_secs()).expect("a present clock")
}

fn instant(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).expect("within years")
}

fn policy() -> String {
    let until = instant(seconds() + DAY / 2);
    format!(
        "domain: shop
descriptors:
  - key: quota
    rate: 3/day
    algorithm: fixed_window
    calendar: {{tz: UTC}}
  - key: plan
    rate: 3/year
    overrides: [{{value: bob, rate: 50/year, until: {until}}}]
  - {{key: bucket, rate: 3/year}}
"
    )
}

struct Asked(redis::Connection);

impl Asked {
    /// Whether the request is admitted, and the limit that it meets.
    fn check(&mut self, key: &str) -> (bool, i64) {
        let mut command = redis::cmd("TG.CHECK");
        command.arg("shop").arg(key).arg("bob");
        let answer: Vec<redis::Value> = command.query(&mut self.0).expect("an answer");
        match answer[..] {
            [redis::Value::Int(limited), redis::Value::Int(limit), ..] => (limited == 0, limit),
            _ => panic!("{answer:?}"),
        }
    }

    fn drain(&mut self, key: &str) -> usize {
        (0..10).take_while(|_| self.check(key).0).count()
    }
}

#[test]
fn a_corrected_wall_clock_is_followed_while_the_daemon_runs() {
    let program = our_program("tidegate");
    let daemon = Daemon::start(DaemonSetup {
        program: &program,
        policy: &policy(),
        store: "memory",
        settings: &[],
        has_fake_clock: true,
    });
    let client = redis::Client::open(format!("redis://{}", daemon.transport("RESP")));
    let mut asked = Asked(client.and_then(|it| it.get_connection()).expect("it listens"));
    assert_eq!((asked.drain("bucket"), asked.drain("quota")), (3, 3));
    assert_eq!(asked.check("plan").1, 50, "the override holds");

    daemon.step_clock(DAY);
    wait_until("a new day has its own quota", TIMEOUT, || asked.check("quota").0);
    assert_eq!(asked.drain("quota"), 2, "of the three");
    assert_eq!(asked.check("plan").1, 3, "the override has ended");
    assert!(!asked.check("bucket").0, "a wall clock refills no bucket");
    wait_until("the log tells tomorrow's date", TIMEOUT, || {
        http::ask(daemon.transport("admin"), "PUT /v1/log-level", "", "{\"level\": \"info\"}");
        let date = instant(seconds() + DAY).to_string()[..10].to_owned();
        let log = daemon.log_tail();
        log.lines().any(|line| line.starts_with(&date) && line.contains("/v1/log-level"))
    });

    // A day of yesterday starts afresh, and nothing is denied for longer than a day and an hour.
    daemon.step_clock(-DAY);
    wait_until("the override holds again", TIMEOUT, || asked.check("plan").1 == 50);
    assert!(!asked.check("bucket").0, "a wall clock refills no bucket");
}
