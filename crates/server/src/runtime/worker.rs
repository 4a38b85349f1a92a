//! A worker: a thread with a runtime of its own that serves connections.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate::Permit;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use crate::observability::status::Counters;
use crate::observability::throttle::{Admitted, Frequent};
use crate::runtime::accept::{Refusal, refuse};
use crate::runtime::listener::Socket;
use crate::runtime::proxy_header::{self, Unsound};
use crate::service::RateLimitService;
use crate::settings::Settings;
use crate::transport::admin::{self, Access};
use crate::transport::gateway::{self, Pools, Upstreams};
use crate::transport::http2::Budget;
use crate::transport::{Protocol, Stream, Transport, grpc, http, resp};

/// Number of times the runtime reads pending input before connections are asked to end.
const LAST_LOOKS: usize = 4;

/// A connection on its way from the listener to the worker.
#[derive(Debug)]
pub(crate) struct NewConnection {
    pub(crate) socket: Socket,
    pub(crate) slot: ConnectionSlot,
    pub(crate) listener: Arc<Transport>,
}

/// Room for one connection, free again when it ends.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    pub(crate) _on_listener: OwnedSemaphorePermit,
    pub(crate) _in_process: OwnedSemaphorePermit,
    /// The connection's place under the limits of its address.
    pub(crate) of_address: Option<Permit>,
}

/// Serves connections until the acceptors end; then lets the open ones finish.
pub(crate) async fn work(
    mut incoming: mpsc::Receiver<NewConnection>,
    service: RateLimitService,
    settings: Arc<Settings>,
    budget: Budget,
    upstreams: Option<Arc<Upstreams>>,
) {
    let service = service.for_thread();
    // Each worker has its own channel, so that connections of other threads do not contend for it.
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let pools = upstreams.map(|upstreams| Pools::new(upstreams, settings.threads.get()));
    loop {
        tokio::select! {
            connection = incoming.recv() => {
                let Some(connection) = connection else { break };
                let context = ConnContext {
                    service: service.behind(connection.listener.protocol),
                    settings: Arc::clone(&settings),
                    stopped: stopped.clone(),
                    budget: budget.clone(),
                    pools: pools.clone(),
                    client: None,
                };
                connections.spawn(receive(connection, context));
            }
            // Removes ended connections from the set. A panic ends its connection only.
            Some(_) = connections.join_next() => {}
        }
    }
    // New connections have not been read yet: let the runtime read the bytes that have arrived.
    for _ in 0..LAST_LOOKS {
        tokio::task::yield_now().await;
    }
    stop.send_replace(true);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Connections that have not finished by then are closed when the set is dropped.
    let _ = timeout(settings.drain, finished).await;
}

/// The context of a connection.
#[derive(Debug)]
pub(crate) struct ConnContext {
    pub(crate) service: RateLimitService,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stopped: watch::Receiver<bool>,
    pub(crate) budget: Budget,
    /// Connections of the worker to the services behind the gateway.
    pub(crate) pools: Option<Pools>,
    /// The address of the client, if there is one: from the PROXY protocol header, or else the
    /// peer's.
    pub(crate) client: Option<IpAddr>,
}

async fn receive(connection: NewConnection, mut context: ConnContext) {
    let NewConnection { socket, mut slot, listener } = connection;
    // This fails if the client has closed the connection already.
    let Ok(mut stream) = socket.register() else { return };
    match identify(&mut stream, &mut slot, &listener).await {
        Ok(client) => context.client = client,
        Err((refusal, client)) => {
            let (counters, log) = (context.service.counters(), context.service.status().log());
            refuse(refusal, listener.protocol, client, (counters, log));
            return stream.reset();
        }
    }
    if let Some(tls) = &listener.tls {
        let peer = context.client;
        match tls.accept(stream).await {
            Ok(encrypted) => stream = encrypted,
            Err(why) => {
                let log = context.service.status().log();
                if let Some(Admitted { suppressed }) = log.admit(Frequent::ClientRefused) {
                    let client = peer.map(|peer| peer.to_string());
                    let (event, listener) = ("client_refused", listener.protocol.name());
                    warn!(event, listener, client, suppressed, "TLS handshake failed: {why}");
                }
                return;
            }
        }
    }
    let _open = Open::new(context.service.counters(), listener.protocol);
    match listener.protocol {
        Protocol::Resp => resp::converse(stream, context).await,
        Protocol::Http => http::converse(stream, context).await,
        Protocol::Grpc => grpc::converse(stream, context).await,
        Protocol::Admin => admin::converse(stream, context, Access::All).await,
        Protocol::Gateway => gateway::converse(stream, context).await,
        Protocol::Metrics => admin::converse(stream, context, Access::Metrics).await,
    }
    drop(slot);
}

/// The client's address, from the PROXY protocol header if one is expected. A connection with a
/// header is counted under its client's address here, because the address was unknown before.
async fn identify(
    stream: &mut Stream,
    slot: &mut ConnectionSlot,
    listener: &Transport,
) -> Result<Option<IpAddr>, (Refusal, Option<IpAddr>)> {
    let peer = stream.peer();
    let Some(accept) = listener.accept.as_ref().filter(|it| it.expects_header(peer)) else {
        return Ok(peer);
    };
    match proxy_header::read(stream).await {
        Ok(Some(client)) => {
            let place = accept.admit(Some(client));
            slot.of_address = place.map_err(|refusal| (refusal, Some(client)))?;
            Ok(Some(client))
        }
        Ok(None) => Ok(peer),
        Err(Unsound) => Err((Refusal::ProxyHeader, peer)),
    }
}

/// Counts a connection as open until it ends, also by a panic.
struct Open {
    counters: Arc<Counters>,
    protocol: Protocol,
}

impl Open {
    fn new(counters: &Arc<Counters>, protocol: Protocol) -> Self {
        counters.count_opened(protocol);
        Self { counters: Arc::clone(counters), protocol }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.counters.count_closed(self.protocol);
    }
}
