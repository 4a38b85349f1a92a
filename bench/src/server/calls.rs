//! gRPC calls, several in flight on a connection.

use std::time::Instant;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use prost::Message;
use tidegate_tests::grpc::SHOULD_RATE_LIMIT;
use tidegate_tests::rls::RateLimitRequest;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::Trouble;
use super::load::{Keys, Load, Seen};
use super::wire::{Template, name};

/// The domain of the requests, and the key of their single entry.
pub const DOMAIN: &str = "bench";
pub const ENTRY: &str = "user_id";

/// The message about a key, as it is sent.
pub fn template() -> Template {
    let message = RateLimitRequest::one(DOMAIN, ENTRY, &name(0)).encode_to_vec();
    Template::around(tidegate_tests::grpc::framed(&message))
}

/// One connection with this many callers.
pub async fn run(load: &Load, streams: usize, keys: Keys) -> Result<Seen, Trouble> {
    let stream = TcpStream::connect(load.address).await.map_err(Trouble::of)?;
    stream.set_nodelay(true).map_err(Trouble::of)?;
    let (client, connection) = h2::client::handshake(stream).await.map_err(Trouble::of)?;
    // Ends with the last of its handles.
    spawn_local(connection);
    let callers: Vec<_> = (0..streams)
        .map(|number| {
            let (client, template) = (client.clone(), load.template.clone());
            spawn_local(call(client, template, keys.share(number, streams)))
        })
        .collect();
    let mut seen = Seen::default();
    for caller in callers {
        let part = caller.await.map_err(Trouble::of)??;
        seen.latencies.extend(part.latencies);
        seen.decisions += part.decisions;
    }
    Ok(seen)
}

async fn call(
    mut client: SendRequest<Bytes>,
    template: Template,
    keys: Keys,
) -> Result<Seen, Trouble> {
    let request = Request::post(format!("http://bench{SHOULD_RATE_LIMIT}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(Trouble::of)?;
    let mut seen = Seen::default();
    for key in keys {
        let mut message = Vec::new();
        template.write(key, &mut message);
        let asked = Instant::now();
        client = client.ready().await.map_err(Trouble::of)?;
        let (answer, mut body) =
            client.send_request(request.clone(), false).map_err(Trouble::of)?;
        body.send_data(message.into(), true).map_err(Trouble::of)?;
        let (head, mut body) = answer.await.map_err(Trouble::of)?.into_parts();
        while let Some(data) = body.data().await {
            let length = data.map_err(Trouble::of)?.len();
            body.flow_control().release_capacity(length).map_err(Trouble::of)?;
        }
        let trailers = body.trailers().await.map_err(Trouble::of)?;
        succeeded(trailers.as_ref().unwrap_or(&head.headers))?;
        seen.add(asked, 1);
    }
    Ok(seen)
}

fn succeeded(fields: &HeaderMap) -> Result<(), Trouble> {
    match fields.get("grpc-status") {
        Some(status) if status == "0" => Ok(()),
        _ => Err(Trouble(format!("the call failed: {fields:?}"))),
    }
}
