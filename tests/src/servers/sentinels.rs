//! A primary with two replicas, watched by three sentinels.

use std::time::Duration;

use super::builder::Builder;
use super::outage::LastOutage;
use super::server::RedisServer;
use super::waiting::comes_true;

const NAME: &str = "mymaster";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// Intervals of the sentinels' messages, in milliseconds.
const HURRY: [&str; 6] = ["SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "PUBLISH-PERIOD", "250"];
/// With default intervals, sentinels greet each other every two seconds.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// Three servers and three sentinels, all of which are stopped on drop.
#[derive(Debug)]
pub struct Sentinels {
    // Dropped first, so that they see no outage at the end.
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
    outage: LastOutage,
}

impl Sentinels {
    /// Starts servers that fail over after half a second, and returns once all know each other.
    pub fn start() -> Self {
        Self::start_with(&RedisServer::builder())
    }

    /// Like [`Sentinels::start`], with the program and directives of `builder` for the watched
    /// servers.
    pub fn start_with(builder: &Builder) -> Self {
        let primary = builder.start();
        let replicate = format!("127.0.0.1 {}", primary.port());
        let replica = builder.clone().arg("replicaof", &replicate);
        let mut servers = vec![primary];
        servers.extend(std::iter::repeat_with(|| replica.start()).take(REPLICAS));
        wait_for_replicas(&servers);

        let sentinel = builder
            .bare()
            .sentinel()
            .arg("sentinel", &format!("monitor {NAME} 127.0.0.1 {} {QUORUM}", servers[0].port()))
            .arg("sentinel", &format!("down-after-milliseconds {NAME} 500"))
            .arg("sentinel", &format!("failover-timeout {NAME} 3000"))
            .arg("sentinel", &format!("parallel-syncs {NAME} 1"));
        let sentinels = std::iter::repeat_with(|| {
            let sentinel = sentinel.start();
            // Without this command, a returning server becomes a replica only after half a minute.
            // Older programs do not have the command.
            let _ = sentinel.try_command(&HURRY);
            sentinel
        });
        let sentinels = sentinels.take(SENTINELS).collect();
        let started = Self { sentinels, servers, outage: LastOutage::default() };
        started.wait_for_acquaintance();
        started
    }

    fn wait_for_acquaintance(&self) {
        let all = format!("status=ok,address={}", self.servers[0].address());
        let all = format!("{all},slaves={REPLICAS},sentinels={SENTINELS}");
        for sentinel in &self.sentinels {
            let seen = || sentinel.text(&["INFO", "sentinel"]);
            if !comes_true(SETTLE_LIMIT, || seen().contains(&all)) {
                sentinel.panic(&format!("it does not see {all} but {}", seen()));
            }
        }
    }

    /// The URL for clients under test.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(RedisServer::address).collect();
        format!("redis+sentinel://{}/{NAME}", addresses.join(","))
    }

    /// The sentinels, for tests that take one down.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The watched servers, in any role and state; the first was the primary at the start.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The primary in the view of most sentinels; it may be down.
    pub fn primary(&self) -> &RedisServer {
        let mut primary = None;
        if !comes_true(SETTLE_LIMIT, || {
            primary = self.elected();
            primary.is_some()
        }) {
            self.sentinels[0].panic("the sentinels do not agree on a primary");
        }
        primary.expect("looked until there was one")
    }

    /// Kills the primary like a crash, and returns it.
    pub fn kill_primary(&self) -> &RedisServer {
        let primary = self.primary();
        self.outage.begin(primary, RedisServer::kill);
        primary
    }

    /// Pauses the primary and returns it. The sentinels take it for dead until it is resumed.
    pub fn pause_primary(&self) -> &RedisServer {
        let primary = self.primary();
        self.outage.begin(primary, RedisServer::pause);
        primary
    }

    /// Waits until most sentinels name another primary and its own role agrees. Returns the time
    /// since [`kill_primary`](Self::kill_primary) or [`pause_primary`](Self::pause_primary) began.
    pub fn wait_for_promotion(&self, limit: Duration) -> Duration {
        let successor = || self.elected().filter(|server| is_primary(server));
        self.outage.wait_for_successor(limit, successor).unwrap_or_else(|| {
            self.sentinels[0].panic(&format!("no replica was promoted in {limit:?}"))
        })
    }

    /// The primary by a quorum of sentinels.
    fn elected(&self) -> Option<&RedisServer> {
        let named: Vec<u16> = self.sentinels.iter().filter_map(named_by).collect();
        self.servers
            .iter()
            .find(|server| named.iter().filter(|&&port| port == server.port()).count() >= QUORUM)
    }
}

fn named_by(sentinel: &RedisServer) -> Option<u16> {
    if !sentinel.is_answering() {
        return None;
    }
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
    let (_, port): (String, u16) =
        redis::from_redis_value(sentinel.try_command(&ask).ok()?).ok()?;
    Some(port)
}

fn is_primary(server: &RedisServer) -> bool {
    let Some(answer) = server.is_answering().then(|| server.try_command(&["ROLE"])) else {
        return false;
    };
    // A primary reports its role, its offset and its replicas.
    answer.is_ok_and(|role| {
        let role: Result<(String, u64, redis::Value), _> = redis::from_redis_value(role);
        role.is_ok_and(|(role, ..)| role == "master")
    })
}

/// Both ends have to agree: a primary counts a replica that is still loading.
fn wait_for_replicas(servers: &[RedisServer]) {
    let (primary, replicas) = servers.split_first().expect("there is a primary");
    let online = || primary.text(&["INFO", "replication"]).matches("state=online").count();
    if !comes_true(SETTLE_LIMIT, || online() == REPLICAS) {
        primary.panic("its replicas did not come online");
    }
    for replica in replicas {
        if !comes_true(SETTLE_LIMIT, || replica.info("master_link_status") == "up") {
            replica.panic("it did not get in step with its primary");
        }
    }
}
