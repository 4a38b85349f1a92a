//! F7: the clock of a node is set.

use redis::Connection;

use super::figure::Figure;
use super::node::policy_text;
use super::pace::Pace;
use crate::servers::{Daemon, DaemonSetup, RedisServer, our_program};

/// No unit is refilled during the measurement. The window is an hour, as are the steps.
const RULES: &str = "
  - {key: bucket, rate: 100/year}
  - {key: window, rate: 100/1000h, algorithm: fixed_window}
  - {key: sliding, rate: 100/1000h, algorithm: sliding_window}
  - {key: log, rate: 100/1000h, algorithm: sliding_log}
";
const KEYS: [&str; 4] = ["bucket", "window", "sliding", "log"];
const TRIES: usize = 160;
const HOUR: i64 = 3_600;

/// A daemon, and a connection to its Redis transport.
struct Asked {
    daemon: Daemon,
    connection: Connection,
}

impl Asked {
    fn start(store: &str, has_fake_clock: bool) -> Self {
        let (program, policy) = (our_program("tidegate"), policy_text(RULES));
        // faketime is slow, so the deadline is long; it is not measured here.
        let settings = [("TIDEGATE__STORE__DEADLINE", "10s")];
        let daemon = Daemon::start(DaemonSetup {
            program: &program,
            policy: &policy,
            store,
            settings: &settings,
            has_fake_clock,
        });
        let client = redis::Client::open(format!("redis://{}", daemon.transport("RESP")));
        let connection = client.and_then(|client| client.get_connection()).expect("it listens");
        Self { daemon, connection }
    }

    fn is_allowed(&mut self, key: &str, user: &str) -> bool {
        let mut command = redis::cmd("TG.CHECK");
        command.arg("chaos").arg(key).arg(user);
        let answer: Vec<redis::Value> = command.query(&mut self.connection).expect("an answer");
        answer[0] == redis::Value::Int(0)
    }
}

/// F7: steps of an hour back and forth, on one of several nodes and on a single node.
pub(crate) fn steps(_: &Pace) -> Vec<Figure> {
    let redis = RedisServer::start();
    let mut figures = Vec::new();
    for (store, behaviour) in [
        (redis.url(), "in Redis: decisions that differ from those of a node with the right clock"),
        ("memory".into(), "in memory: decisions that differ"),
    ] {
        let (mut stepped, mut right) = (Asked::start(&store, true), Asked::start(&store, false));
        let mut differences = 0;
        for turn in 0..TRIES {
            if turn % 10 == 5 {
                let seconds = [HOUR, -HOUR, -HOUR, HOUR][turn / 10 % 4];
                stepped.daemon.step_clock(seconds);
            }
            for key in KEYS {
                let answer = stepped.is_allowed(key, "stepped");
                differences += u64::from(answer != right.is_allowed(key, "right"));
            }
        }
        figures.push(Figure::none(behaviour, differences));
    }
    figures
}
