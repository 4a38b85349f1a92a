//! Calls of tonic's client through the gateway to tonic's server.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use hyper::body::Bytes;
use tidegate_server::{Gateway, Upstream};
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::http2_client::run;
use super::tonic_service::{BytesCodec, TonicService};
use super::{FIVE, Front};

fn front(policy: &str, service: &TonicService) -> Front {
    let upstream: Upstream = service.url().parse().expect("a URL");
    Front::with(policy, |gateway| *gateway = Gateway::new(upstream))
}

async fn channel(front: &Front) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", front.address())).expect("a URL");
    endpoint.connect().await.expect("it listens")
}

fn health(service: &str, user: &str) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest { service: service.into() });
    request.metadata_mut().insert("x-user", user.parse().expect("a value"));
    request
}

#[test]
fn unary_and_streaming_calls_are_forwarded() {
    let service = TonicService::start();
    let front = front("", &service);
    run(async {
        let mut client = HealthClient::new(channel(&front).await);
        let checked = client.check(health("", "u")).await.expect("an answer").into_inner();
        assert_eq!(checked.status, 1);
        let unknown = client.check(health("x", "u")).await.expect_err("no such service");
        assert_eq!(unknown.code(), Code::NotFound);
        let mut watched = client.watch(health("", "u")).await.expect("a stream").into_inner();
        assert_eq!(watched.message().await.expect("a message").expect("one").status, 1);
    });
}

async fn echo(
    channel: Channel,
    messages: mpsc::UnboundedReceiver<Bytes>,
) -> Result<tonic::Streaming<Bytes>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.expect("a connection");
    let messages =
        stream::unfold(messages, |mut messages| async { Some((messages.recv().await?, messages)) });
    let path = "/test.Echo/Any".parse().expect("a path");
    let request = Request::new(messages.boxed());
    Ok(client.streaming(request, path, BytesCodec).await?.into_inner())
}

/// Each message is sent after the echo of the one before.
#[test]
fn both_sides_of_a_call_stream_at_the_same_time() {
    let service = TonicService::start();
    let front = front("", &service);
    run(async {
        let channel = channel(&front).await;
        let (sender, messages) = mpsc::unbounded_channel();
        sender.send("first".into()).expect("a call");
        let mut echoes = echo(channel, messages).await.expect("a stream");
        assert_eq!(echoes.message().await.expect("a message").expect("one"), "first");
        let large = Bytes::from("x".repeat(1 << 20));
        for message in [large, "fail".into()] {
            sender.send(message.clone()).expect("a call");
            let echoed = echoes.message().await.expect("a message").expect("one");
            assert!(echoed == message, "{}", echoed.len());
        }
        let end = echoes.message().await.expect_err("the trailers have an error");
        assert_eq!((end.code(), end.message()), (Code::DataLoss, "as asked"));
    });
}

#[test]
fn a_denied_call_is_resource_exhausted_and_does_not_reach_the_service() {
    let service = TonicService::start();
    let front = front(FIVE, &service);
    run(async {
        let mut client = HealthClient::new(channel(&front).await);
        for _ in 0..5 {
            client.check(health("", "u")).await.expect("an answer");
        }
        let denied = client.check(health("", "u")).await.expect_err("the limit is five");
        assert_eq!(denied.code(), Code::ResourceExhausted);
        assert_eq!(denied.metadata().get("grpc-retry-pushback-ms").expect("a field"), "12000");
        client.check(health("", "other")).await.expect("an answer");
    });
}

#[test]
fn a_service_that_is_gone_is_unavailable_and_one_that_hangs_is_late() {
    let hung = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let free = tidegate_tests::servers::free_port();
    for (port, expected) in [
        (free, Code::Unavailable),
        (hung.local_addr().expect("bound").port(), Code::DeadlineExceeded),
    ] {
        let mut upstream: Upstream = format!("h2c://127.0.0.1:{port}").parse().expect("a URL");
        upstream.head_timeout = Duration::from_millis(500);
        let front = Front::with("", |gateway| *gateway = Gateway::new(upstream));
        run(async {
            let mut client = HealthClient::new(channel(&front).await);
            let failed = client.check(health("", "u")).await.expect_err("no answer");
            assert_eq!(failed.code(), expected, "{failed:?}");
            assert!(!failed.message().contains("127.0.0.1"), "{failed:?}");
        });
    }
}
