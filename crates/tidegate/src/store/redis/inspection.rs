//! Inspects servers for conditions that weaken limits, by `INFO` and `CONFIG GET save`.
//!
//! # Bounds
//! The store keeps one inspection per server. A command that a server refuses is not sent again on
//! the same connection, so that the server's log of refusals does not grow.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Cmd, Value};

use crate::store::Misconfigured;
use crate::store::redis::StoreError;
use crate::store::redis::routing::server_queue::ServerQueue;
use crate::store::redis::wire::connection::Connected;

/// The oldest version that has every command of the scripts.
const OLDEST: (u32, u32) = (6, 2);

/// A condition of a server that does not stop decisions, but weakens limits or could not be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The address of the server.
    pub server: String,
    /// The kind of condition.
    pub condition: Condition,
    /// A description of the condition and how to end it.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.message)
    }
}

/// A kind of [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Condition {
    /// The server evicts keys when its memory is full: an evicted key gets its whole quota again.
    Eviction,
    /// The server is a replica. No decision is made there.
    Replica,
    /// The server does not persist: after a restart every key gets its whole quota again.
    Persistence,
    /// The server does not permit the commands that show the other conditions.
    Unchecked,
    /// The registry of nodes is unusable: nodes are not counted.
    Registry,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 5] =
        [Self::Eviction, Self::Replica, Self::Persistence, Self::Unchecked, Self::Registry];

    /// The name of the condition in metrics and in the status document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eviction => "eviction",
            Self::Replica => "replica",
            Self::Persistence => "persistence",
            Self::Unchecked => "unchecked",
            Self::Registry => "registry",
        }
    }
}

/// The last inspection of each server, by its address.
#[derive(Debug, Default)]
pub(super) struct Inspections(Mutex<BTreeMap<String, Inspection>>);

/// The inspection of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Inspection {
    /// The connection it was made on.
    connection: u64,
    refuses_info: bool,
    refuses_config: bool,
    findings: Vec<Finding>,
}

impl Inspections {
    /// The findings of all servers.
    pub(super) fn findings(&self) -> Vec<Finding> {
        self.lock().values().flat_map(|look| look.findings.clone()).collect()
    }

    /// Whether no server has been inspected.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Inspection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inspects every server and stores the result. A server that does not answer keeps its last
    /// inspection.
    ///
    /// # Errors
    /// The fault of a server: of the first one if `stops` is true, in which case the servers after
    /// it are not inspected, otherwise of the last one.
    pub(super) async fn refresh(
        &self,
        server_queues: Vec<(Arc<ServerQueue>, bool)>,
        stops: bool,
    ) -> Result<(), StoreError> {
        let (mut seen, mut looked) = (Vec::new(), Ok(()));
        for (server_queue, clustered) in &server_queues {
            let server = server_queue.connection.address();
            let mut look = self.lock().get(&server).cloned();
            if let Err(error) = inspect(server_queue, *clustered, &mut look).await {
                looked = Err(error);
            }
            // The address may have become known by the inspection.
            seen.extend(look.map(|look| (server_queue.connection.address(), look)));
            if stops && looked.is_err() {
                break;
            }
        }
        let mut looks = self.lock();
        looks.extend(seen);
        looks.retain(|server, _| {
            server_queues
                .iter()
                .any(|(server_queue, _)| server_queue.connection.address() == *server)
        });
        looked
    }
}

/// Inspects a server and updates `look`, its last inspection.
async fn inspect(
    server_queue: &ServerQueue,
    clustered: bool,
    look: &mut Option<Inspection>,
) -> Result<(), StoreError> {
    let connected = match server_queue.connection.connected().await {
        Err(error @ StoreError::Misconfigured(Misconfigured::ReadOnly, _)) => {
            *look =
                Some(Inspection { findings: vec![replica(server_queue)], ..Inspection::default() });
            return Err(error);
        }
        connected => connected?,
    };
    let connection = connected.number();
    let last = look.clone().filter(|last| last.connection == connection);
    if last.as_ref().is_some_and(|last| last.refuses_info) {
        return Ok(());
    }
    let last = last.unwrap_or_else(|| Inspection { connection, ..Inspection::default() });
    let mut present = Inspection { findings: Vec::new(), ..last };
    let judged = examine(server_queue, &connected, clustered, &mut present).await;
    // A server that did not answer has not been inspected.
    if !judged.as_ref().is_err_and(StoreError::is_outage) {
        *look = Some(present);
    }
    judged
}

async fn examine(
    server_queue: &ServerQueue,
    connected: &Connected,
    clustered: bool,
    look: &mut Inspection,
) -> Result<(), StoreError> {
    let info = match server_queue.connection.send(connected, Cmd::new().arg("INFO")).await {
        Ok(Value::BulkString(info)) => String::from_utf8_lossy(&info).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(other) => return Err(StoreError::protocol(format!("INFO answered {other:?}"))),
        Err(failure) => {
            let why = refusal(failure.into_error(), "INFO", "+info")?;
            let message =
                format!("cannot check the eviction policy, persistence, role and version: {why}");
            look.refuses_info = true;
            look.findings.push(finding(server_queue, Condition::Unchecked, message));
            return Ok(());
        }
    };
    // A cluster node redirects commands for slots it does not serve.
    if !clustered && field(&info, "role") == "slave" {
        look.findings.push(replica(server_queue));
    }
    look.findings.extend(eviction(&info).map(|it| finding(server_queue, Condition::Eviction, it)));
    // Replicas copy their primary, and sentinels store no keys.
    if field(&info, "role") == "master" && field(&info, "aof_enabled") != "1" {
        snapshots(server_queue, connected, look).await?;
    }
    judge(&server_queue.connection.address(), &info, clustered)
}

/// Adds a finding if the server takes no snapshots; the caller has found that it keeps no
/// append-only file.
async fn snapshots(
    server_queue: &ServerQueue,
    connected: &Connected,
    look: &mut Inspection,
) -> Result<(), StoreError> {
    const UNKNOWN: &str = "cannot check persistence: appendonly is no, and";
    if !look.refuses_config {
        let command = ["CONFIG", "GET", "save"];
        let answered = server_queue.connection.send(connected, Cmd::new().arg(&command)).await;
        let answered = answered.map(redis::from_redis_value::<BTreeMap<String, String>>);
        match answered {
            Ok(Ok(settings)) if settings.get("save").is_some_and(|save| !save.is_empty()) => {}
            Ok(Ok(settings)) if settings.contains_key("save") => {
                let message = "persistence is off (save is empty, appendonly is no): after a \
                               restart of the server every key gets its whole quota again; set one \
                               of them";
                look.findings.push(finding(server_queue, Condition::Persistence, message.into()));
            }
            Ok(_) => {
                let message = format!("{UNKNOWN} CONFIG GET save gives no answer");
                look.findings.push(finding(server_queue, Condition::Unchecked, message));
            }
            Err(failure) => {
                refusal(failure.into_error(), "CONFIG GET", "+config|get")?;
                look.refuses_config = true;
            }
        }
    }
    if look.refuses_config {
        let message = format!(
            "{UNKNOWN} CONFIG GET save is refused; grant +config|get, or make sure that the server \
             takes snapshots"
        );
        look.findings.push(finding(server_queue, Condition::Unchecked, message));
    }
    Ok(())
}

/// Why the server refuses a command that decisions do not need; an error for any other fault.
fn refusal(error: StoreError, command: &str, right: &str) -> Result<String, StoreError> {
    match error {
        StoreError::Misconfigured(Misconfigured::Permission, _) => {
            Ok(format!("{command} is not permitted; grant {right}"))
        }
        // Proxies and managed servers do not have all commands.
        StoreError::Misconfigured(Misconfigured::Version, _) | StoreError::Protocol(_) => {
            Ok(format!("the server does not support {command}"))
        }
        error => Err(error),
    }
}

fn finding(server_queue: &ServerQueue, condition: Condition, message: String) -> Finding {
    Finding { server: server_queue.connection.address(), condition, message }
}

fn replica(server_queue: &ServerQueue) -> Finding {
    let message = "is a replica: no decision is made on it; point the URL at the primary, or use \
                   redis+sentinel:// or redis+cluster:// to follow it";
    finding(server_queue, Condition::Replica, message.into())
}

/// A field of `INFO`; empty if there is none.
fn field<'i>(info: &'i str, name: &str) -> &'i str {
    let value = |line: &'i str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim());
    info.lines().find_map(value).unwrap_or_default()
}

/// The effect of eviction on limits, if the server evicts keys with large debts.
fn eviction(info: &str) -> Option<String> {
    let policy = field(info, "maxmemory_policy");
    // Of keys with a time to live, volatile-ttl evicts those with the least debt first.
    let is_harmless = matches!(policy, "" | "noeviction" | "volatile-ttl");
    let is_bounded = !matches!(field(info, "maxmemory"), "" | "0");
    (is_bounded && !is_harmless).then(|| {
        format!(
            "maxmemory-policy is {policy}: an evicted key gets its whole quota again; use \
             noeviction or volatile-ttl"
        )
    })
}

/// Whether the server can make decisions, by its `INFO`.
fn judge(server: &str, info: &str, clustered: bool) -> Result<(), StoreError> {
    let wrong = |what, why: String| Err(StoreError::misconfigured(what, format!("{server} {why}")));
    let version = field(info, "redis_version");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return wrong(Misconfigured::Version, format!("is version {version:?}"));
    }
    if field(info, "redis_mode") == "sentinel" {
        let why = "is a sentinel, which a redis+sentinel:// URL is for".into();
        return wrong(Misconfigured::Setting, why);
    }
    if field(info, "role") == "slave" {
        return wrong(Misconfigured::ReadOnly, "is a replica".into());
    }
    if !clustered && field(info, "cluster_enabled") == "1" {
        return wrong(Misconfigured::CrossSlot, "is part of a cluster".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
                         maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\n\
                         cluster_enabled:0\r\n";

    fn with(field: &str, value: &str) -> String {
        let line = |line: &str| match line.split_once(':') {
            Some((name, _)) if name == field => format!("{name}:{value}\r\n"),
            _ => format!("{line}\r\n"),
        };
        SOUND.lines().map(line).collect()
    }

    fn misconfigured(field: &str, value: &str) -> Option<Misconfigured> {
        match judge("cache:6379", &with(field, value), false) {
            Err(error @ StoreError::Misconfigured(what, _)) => {
                assert!(error.to_string().contains("cache:6379"), "{error}");
                assert!(error.to_string().contains(what.advice()), "{error}");
                Some(what)
            }
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        }
    }

    #[test]
    fn servers_older_than_every_command_needs_are_refused() {
        for version in ["6.1.9", "5.0.14", "2.8.0", "", "unknown"] {
            let found = misconfigured("redis_version", version);
            assert_eq!(found, Some(Misconfigured::Version), "{version}");
        }
        for version in ["6.2.0", "6.2.5", "7.0.15", "7.2.4", "8.10.1", "10.0"] {
            assert_eq!(misconfigured("redis_version", version), None, "{version}");
        }
    }

    #[test]
    fn servers_of_another_kind_are_refused() {
        assert_eq!(misconfigured("role", "slave"), Some(Misconfigured::ReadOnly));
        assert_eq!(misconfigured("cluster_enabled", "1"), Some(Misconfigured::CrossSlot));
        assert_eq!(misconfigured("redis_mode", "sentinel"), Some(Misconfigured::Setting));
        assert!(judge("cache:6379", &SOUND.replace("enabled:0", "enabled:1"), true).is_ok());
    }

    #[test]
    fn eviction_is_a_finding_only_where_memory_is_bounded() {
        assert_eq!(eviction(&with("maxmemory", "0")), None);
        let found = eviction(&with("maxmemory", "1048576")).unwrap();
        assert!(found.contains("maxmemory-policy is allkeys-lru"), "{found}");
        // A managed server may leave both out.
        assert_eq!(eviction("redis_version:7.0.15\r\n"), None);
    }
}
