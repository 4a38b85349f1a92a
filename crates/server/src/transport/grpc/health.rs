//! `grpc.health.v1`: readiness over gRPC.

use std::sync::Arc;

use hyper::body::Bytes;

use super::body::streaming;
use super::call::only_message;
use super::message::{self, Messages};
use super::status::{Code, Status};
use super::{GrpcConnection, Reply};
use crate::transport::admin::reason;
use crate::transport::rls::{Reader, Writer};

/// Known services: the whole server, its name in envoyproxy/ratelimit, and the gRPC service.
const SERVICES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];

/// `ServingStatus`, by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl Health {
    /// The readiness, as at `/readyz` of the admin API.
    async fn of(connection: &GrpcConnection) -> Self {
        let is_stopping = *connection.stopped.borrow();
        match is_stopping || reason(&connection.service).await.is_some() {
            true => Self::NotServing,
            false => Self::Serving,
        }
    }

    fn message(self) -> Bytes {
        message::write(|bytes| Writer::new(bytes).number(1, self as u64))
    }
}

/// `Check`: the current status.
pub(super) async fn check(
    connection: &GrpcConnection,
    messages: Messages,
) -> Result<Bytes, Status> {
    if !is_known(connection, messages).await? {
        return Err(Status::new(Code::NotFound, "unknown service"));
    }
    Ok(Health::of(connection).await.message())
}

/// `Watch`: the current status, and later its end when the server is stopping.
pub(super) async fn watch(connection: &Arc<GrpcConnection>, messages: Messages) -> Reply {
    let is_known = match is_known(connection, messages).await {
        Ok(is_known) => is_known,
        Err(status) => return status.reply(),
    };
    streaming(connection, async move |connection: Arc<GrpcConnection>, sender| {
        let now = if is_known { Health::of(&connection).await } else { Health::ServiceUnknown };
        // Fails if the peer is gone; the watch then ends. The same applies below.
        let _ = sender.send(Ok(now.message())).await;
        let mut stopped = connection.stopped.clone();
        tokio::select! {
            () = sender.closed() => return,
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        if is_known && now != Health::NotServing {
            let _ = sender.send(Ok(Health::NotServing.message())).await;
        }
        let _ = sender.send(Err(Status::new(Code::Unavailable, "the server is stopping"))).await;
    })
}

async fn is_known(connection: &GrpcConnection, mut messages: Messages) -> Result<bool, Status> {
    let (message, _charge) = only_message(connection, &mut messages).await?;
    let (mut fields, mut service) = (Reader::new(&message), "");
    while let Some(field) = fields.field()? {
        if field.number == 1 {
            service = field.text()?;
        }
    }
    Ok(SERVICES.contains(&service))
}
