//! Asks sentinels for the primary.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Value};
use tokio::task::JoinSet;

use crate::store::redis::config::{Tls, at};
use crate::store::redis::failure::Failure;
use crate::store::redis::wire::connection::open;
use crate::store::redis::wire::deadline::listen;
use crate::store::{Misconfigured, StoreError};

/// A primary that sentinels monitor.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Watched {
    pub(in crate::store::redis) sentinels: Vec<ConnectionInfo>,
    pub(in crate::store::redis) name: String,
    /// Connection settings of its servers, whatever their addresses.
    pub(in crate::store::redis) node: ConnectionInfo,
}

/// The primary that most sentinels name, because a partitioned sentinel may name an old one. If
/// most do not answer, the majority of the answers counts.
pub(in crate::store::redis) async fn primary(
    watched: &Watched,
    tls: &Tls,
    connect_timeout: Duration,
) -> Result<ConnectionInfo, StoreError> {
    let mut trouble = StoreError::unavailable("no sentinel is configured");
    let mut asked = JoinSet::new();
    for sentinel in &watched.sentinels {
        let (sentinel, name, tls) = (sentinel.clone(), watched.name.clone(), tls.clone());
        asked.spawn(async move { ask(&sentinel, &name, &tls, connect_timeout).await });
    }
    let mut named: HashMap<(String, u16), usize> = HashMap::new();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok((host, port))) => {
                let votes = named.entry((host, port)).or_default();
                *votes += 1;
                if *votes * 2 > watched.sentinels.len() {
                    break;
                }
            }
            // An unavailable sentinel must not hide the error of another.
            Ok(Err(error)) if trouble.is_outage() => trouble = error,
            Ok(Err(_)) | Err(_) => {}
        }
    }
    let most = named.into_iter().max_by_key(|(_, votes)| *votes);
    most.map(|((host, port), _)| at(&watched.node, &host, port)).ok_or(trouble)
}

async fn ask(
    sentinel: &ConnectionInfo,
    name: &str,
    tls: &Tls,
    connect_timeout: Duration,
) -> Result<(String, u16), StoreError> {
    let mut connection = open(sentinel.clone(), tls, connect_timeout).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(name);
    let asked =
        listen(connect_timeout, command.query_async::<Option<(String, u16)>>(&mut connection));
    match asked.await {
        Ok(Ok(Some(address))) => Ok(address),
        Ok(Ok(None)) => {
            let why = format!("sentinel {} knows no primary named {name:?}", sentinel.addr());
            Err(StoreError::misconfigured(Misconfigured::Setting, why))
        }
        Ok(Err(error)) if error.to_string().contains("unknown command") => {
            let why = format!("{} is no sentinel", sentinel.addr());
            Err(StoreError::misconfigured(Misconfigured::Setting, why))
        }
        Ok(Err(error)) => Err(Failure::of(&error, sentinel.addr()).into_error()),
        Err(_) => Err(StoreError::unavailable(format!("{} is silent", sentinel.addr()))),
    }
}

/// Asks a server whether it is a primary: a sentinel may name one that is not yet or no longer a
/// primary, and a URL one that never was.
pub(in crate::store::redis) async fn is_primary(
    connection: &mut MultiplexedConnection,
    address: &str,
    connect_timeout: Duration,
) -> Result<bool, StoreError> {
    let role = redis::cmd("ROLE");
    let asked = listen(connect_timeout, role.query_async::<Value>(connection)).await;
    match asked {
        Ok(Ok(role)) => Ok(!is_replica(&role)),
        Ok(Err(error)) => Err(Failure::of(&error, address).into_error()),
        Err(_) => Err(StoreError::unavailable(format!("{address} is silent"))),
    }
}

/// Whether an answer to `ROLE` is that of a replica.
pub(in crate::store::redis) fn is_replica(role: &Value) -> bool {
    let Value::Array(role) = role else { return false };
    match role.first() {
        Some(Value::BulkString(role)) => role == b"slave",
        Some(Value::SimpleString(role)) => role == "slave",
        _ => false,
    }
}
