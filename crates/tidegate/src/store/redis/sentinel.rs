//! Asking sentinels who the primary is.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Value};
use tokio::time::timeout;

use super::config::{Tls, at};
use super::link::open;
use crate::store::{Misconfigured, StoreError};

/// A primary that sentinels watch.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) sentinels: Vec<ConnectionInfo>,
    pub(super) name: String,
    /// How its servers are talked to, wherever they are.
    pub(super) node: ConnectionInfo,
}

/// The primary, as the first sentinel that answers knows it.
pub(super) async fn primary(
    watched: &Watched,
    tls: &Tls,
    patience: Duration,
) -> Result<ConnectionInfo, StoreError> {
    let mut trouble = StoreError::unavailable("no sentinel is known");
    for sentinel in &watched.sentinels {
        match ask(sentinel, &watched.name, tls, patience).await {
            Ok(Some((host, port))) => return Ok(at(&watched.node, &host, port)),
            Ok(None) => {
                let (address, name) = (sentinel.addr(), &watched.name);
                let why = format!("sentinel {address} knows no primary called {name:?}");
                trouble = StoreError::misconfigured(Misconfigured::Setting, why);
            }
            Err(error) => trouble = error,
        }
    }
    Err(trouble)
}

async fn ask(
    sentinel: &ConnectionInfo,
    name: &str,
    tls: &Tls,
    patience: Duration,
) -> Result<Option<(String, u16)>, StoreError> {
    let mut connection = open(sentinel.clone(), tls, patience).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(name);
    let asked = timeout(patience, command.query_async::<Option<(String, u16)>>(&mut connection));
    match asked.await {
        Ok(Ok(address)) => Ok(address),
        Ok(Err(error)) => Err(StoreError::unavailable(format!("{}: {error}", sentinel.addr()))),
        Err(_) => Err(StoreError::unavailable(format!("{} is silent", sentinel.addr()))),
    }
}

/// A sentinel may name a server that is no primary yet, or no more.
pub(super) async fn verify(
    connection: &mut MultiplexedConnection,
    patience: Duration,
) -> Result<(), StoreError> {
    let role = redis::cmd("ROLE");
    let asked = timeout(patience, role.query_async::<Vec<Value>>(connection)).await;
    match asked {
        Ok(Ok(role)) if role.first().is_some_and(|role| is_text(role, "master")) => Ok(()),
        Ok(Ok(_)) => Err(StoreError::unavailable("the named server is not primary yet")),
        Ok(Err(error)) => Err(StoreError::unavailable(error)),
        Err(_) => Err(StoreError::unavailable("the named server is silent")),
    }
}

fn is_text(value: &Value, text: &str) -> bool {
    match value {
        Value::BulkString(bytes) => bytes == text.as_bytes(),
        Value::SimpleString(string) => string == text,
        _ => false,
    }
}
