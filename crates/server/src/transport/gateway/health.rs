//! Active health checks.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;

use hyper::header::{HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::address::Address;
use super::body::RequestBody;
use super::connect::{Connected, Connector};
use super::upstream::{Upstream, Upstreams};
use crate::settings::HealthCheck;

/// Checks all addresses until the server is stopping.
pub(crate) async fn watch(upstreams: Arc<Upstreams>, mut stopped: watch::Receiver<bool>) {
    let mut checks = tokio::task::JoinSet::new();
    for upstream in upstreams.all() {
        let Some(check) = &upstream.settings.health else { continue };
        for address in &upstream.addresses {
            let (upstream, address) = (Arc::clone(upstream), Arc::clone(address));
            checks.spawn(check_often(upstream, address, check.clone()));
        }
    }
    // Dropping the checks ends them.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn check_often(upstream: Arc<Upstream>, address: Arc<Address>, check: HealthCheck) {
    let (mut failures, mut successes) = (0, 0);
    // A random delay, so that addresses are not all checked at once.
    sleep(check.interval * fastrand::u32(..100) / 100).await;
    loop {
        match timeout(check.timeout, ask(&upstream.connector, &address, &check)).await {
            Ok(Ok(())) => {
                (failures, successes) = (0, successes + 1);
                if successes >= check.healthy_after {
                    address.set_healthy(true, "");
                }
            }
            failed => {
                (failures, successes) = (failures + 1, 0);
                if failures >= check.unhealthy_after {
                    let why = failed.unwrap_or_else(|_| Err("no answer in time".into()));
                    address.set_healthy(false, &why.err().unwrap_or_default());
                }
            }
        }
        sleep(check.interval).await;
    }
}

/// Sends one request over a new connection.
async fn ask(connector: &Connector, address: &Address, check: &HealthCheck) -> Result<(), String> {
    let connected = connector.connect(address).await;
    let status = match connected.map_err(|error| error.to_string())? {
        Connected::Http1(mut sender, connection) => {
            let request = Request::get(&check.path)
                .header(HOST, &address.name)
                .header(USER_AGENT, AGENT)
                .body(RequestBody::empty())
                .map_err(|error| error.to_string())?;
            let answered = pin!(sender.send_request(request));
            status_of(answered, connection).await?
        }
        Connected::Http2(sender, connection) => {
            let mut sender = sender.ready().await.map_err(|error| error.to_string())?;
            let uri = format!("{}://{}{}", connector.scheme(), address.name, check.path);
            let request = Request::get(uri).header(USER_AGENT, AGENT).body(());
            let request = request.map_err(|error| error.to_string())?;
            let answered = sender.send_request(request, true);
            let (answered, _) = answered.map_err(|error| error.to_string())?;
            status_of(pin!(answered), connection).await?
        }
    };
    if is_healthy(status) { Ok(()) } else { Err(format!("it answers {status}")) }
}

/// The status of a response. The connection may end as soon as it has the response.
async fn status_of<B, E: fmt::Display>(
    mut answered: Pin<&mut impl Future<Output = Result<Response<B>, E>>>,
    connection: impl Future,
) -> Result<StatusCode, String> {
    let answered = tokio::select! {
        biased;
        answered = answered.as_mut() => answered,
        _ = connection => answered.await,
    };
    answered.map(|response| response.status()).map_err(|error| error.to_string())
}

const AGENT: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

fn is_healthy(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}
