//! A thread that answers, on a runtime of its own.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::observability::log::{Event, Level};
use crate::observability::status::Counters;
use crate::runtime::listener::Socket;
use crate::service::RateLimitService;
use crate::settings::Settings;
use crate::transport::admin::{self, Access};
use crate::transport::grpc::Budget;
use crate::transport::{Protocol, Transport, grpc, http, resp};

/// How often the runtime looks for what has been sent before connections are asked to end.
const LAST_LOOKS: usize = 4;

/// A connection on its way from the listener to the worker.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) socket: Socket,
    pub(crate) place: ConnectionSlot,
    pub(crate) listener: Arc<Transport>,
}

/// Room for one connection, free again when it ends.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    pub(crate) _on_listener: OwnedSemaphorePermit,
    pub(crate) _in_process: OwnedSemaphorePermit,
}

/// Serves whoever is sent, until nobody can be; then lets them finish.
pub(crate) async fn work(
    mut visitors: mpsc::Receiver<Visitor>,
    service: RateLimitService,
    settings: Arc<Settings>,
    budget: Budget,
) {
    let service = service.for_thread();
    // The worker's own, so that connections of other threads do not contend for it.
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            visitor = visitors.recv() => {
                let Some(visitor) = visitor else { break };
                let context = ConnContext {
                    service: service.behind(visitor.listener.protocol),
                    settings: Arc::clone(&settings),
                    stopped: stopped.clone(),
                    budget: budget.clone(),
                };
                connections.spawn(receive(visitor, context));
            }
            // Without this the set would keep what has ended. A panic ends its connection only.
            Some(_) = connections.join_next() => {}
        }
    }
    // Whoever has just come has not been read from: the runtime looks what there is, and then they are.
    for _ in 0..LAST_LOOKS {
        tokio::task::yield_now().await;
    }
    stop.send_replace(true);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Whoever has not finished by then is cut off when the set is dropped.
    let _ = timeout(settings.drain, finished).await;
}

/// What a connection may use.
#[derive(Debug)]
pub(crate) struct ConnContext {
    pub(crate) service: RateLimitService,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stopped: watch::Receiver<bool>,
    pub(crate) budget: Budget,
}

async fn receive(visitor: Visitor, context: ConnContext) {
    let Visitor { socket, place, listener } = visitor;
    // What fails here is a peer that has gone already.
    let Ok(mut stream) = socket.register() else { return };
    if let Some(tls) = &listener.tls {
        let peer = stream.peer();
        match tls.accept(stream).await {
            Ok(encrypted) => stream = encrypted,
            Err(why) => {
                let peer = peer.map_or_else(|| "a Unix socket".into(), |peer| peer.to_string());
                let name = listener.protocol.name();
                let log = context.service.status().log();
                return log.say(
                    Level::Warn,
                    Event::ClientRefused,
                    format!("{name}, {peer}: {why}"),
                );
            }
        }
    }
    let _open = Open::new(context.service.counters(), listener.protocol);
    match listener.protocol {
        Protocol::Resp => resp::converse(stream, context).await,
        Protocol::Http => http::converse(stream, context).await,
        Protocol::Grpc => grpc::converse(stream, context).await,
        Protocol::Admin => admin::converse(stream, context, Access::All).await,
        Protocol::Metrics => admin::converse(stream, context, Access::Metrics).await,
    }
    drop(place);
}

/// A connection that is counted, until it ends in whatever way.
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
