//! Slow clients, in simulated time.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::body::{BodyLimits, ClientFailure, RequestBody, WireBody};
use super::guard::Guard;
use crate::settings::HeaderNames;

const fn unlimited() -> BodyLimits {
    BodyLimits { max_bytes: u64::MAX, pause: None, own: HeaderNames::NONE }
}

/// The failure of a body, if any, and the time until it ended.
type BodyEnd = (Option<ClientFailure>, Duration);

/// A client, and a channel with the result of its request's body. The messages of a gRPC call may
/// pause for `pause`.
fn client(pause: Option<Duration>) -> (DuplexStream, mpsc::Receiver<BodyEnd>) {
    let (client, server) = duplex(1 << 20);
    let (sender, ends) = mpsc::channel(1);
    tokio::spawn(async move {
        let answer = service_fn(|request: Request<Incoming>| {
            let (sender, body) = (sender.clone(), WireBody::Http1(request.into_body()));
            async move {
                let began = Instant::now();
                let (body, mut sent) = RequestBody::new(body, BodyLimits { pause, ..unlimited() });
                let _ = body.collect().await;
                let end = (sent.try_recv().ok(), began.elapsed());
                sender.send(end).await.expect("the test waits");
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        let guard = Guard::new(server, Default::default(), Default::default());
        let _ = http1::Builder::new().serve_connection(TokioIo::new(guard), answer).await;
    });
    (client, ends)
}

const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nhello";

#[tokio::test(start_paused = true)]
async fn a_head_that_takes_longer_than_ten_seconds_ends_the_connection() {
    let (client, server) = duplex(1 << 20);
    let mut guard = Guard::new(server, Default::default(), Default::default());
    let ((mut answer, mut client), began) = (tokio::io::split(client), Instant::now());
    tokio::spawn(async move {
        // A byte each second is no progress.
        for byte in b"GET / HTTP/1.1\r\nHost: a.example\r\n" {
            if client.write_all(&[*byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    });
    let error = loop {
        let mut byte = [0];
        match guard.read(&mut byte).await {
            Ok(1) => {}
            Ok(_) => panic!("the client has not closed the connection"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed().as_secs(), 10);
    drop(guard);
    let mut text = String::new();
    answer.read_to_string(&mut text).await.expect("text");
    assert!(text.starts_with("HTTP/1.1 408 ") && text.ends_with("\r\n\r\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_for_ten_seconds_after_little_is_too_slow() {
    let (mut client, mut ends) = client(None);
    client.write_all(POST).await.expect("sent");
    let (why, after) = ends.recv().await.expect("it ends");
    assert_eq!((why, after.as_secs()), (Some(ClientFailure::TooSlow), 10));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_for_half_a_minute_is_too_slow_whatever_came_before() {
    let (mut client, mut ends) = client(None);
    client.write_all(POST).await.expect("sent");
    client.write_all(&[b'a'; 50_000]).await.expect("sent");
    let (why, after) = ends.recv().await.expect("it ends");
    assert_eq!((why, after.as_secs()), (Some(ClientFailure::TooSlow), 30));
}

/// 200 bytes each second are too few, 280 are enough.
#[tokio::test(start_paused = true)]
async fn a_body_below_240_bytes_per_second_is_too_slow() {
    for (rate, is_enough) in [(200, false), (280, true)] {
        let (mut client, mut ends) = client(None);
        client.write_all(POST).await.expect("sent");
        tokio::spawn(async move {
            for _ in 0..120 {
                if client.write_all(&vec![b'a'; rate]).await.is_err() {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
            // The body is incomplete.
        });
        let (why, after) = ends.recv().await.expect("it ends");
        let expected = if is_enough { ClientFailure::Cut } else { ClientFailure::TooSlow };
        assert_eq!(why, Some(expected), "{rate} bytes per second, after {after:?}");
        assert!(after > Duration::from_secs(30), "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_call_may_pause_for_as_long_as_set() {
    let (mut client, mut ends) = client(Some(Duration::from_secs(90)));
    client.write_all(POST).await.expect("sent");
    let (why, after) = ends.recv().await.expect("it ends");
    assert_eq!((why, after.as_secs()), (Some(ClientFailure::TooSlow), 90));
}

/// After a response within a request, the rest of the request is read for a while, so that the
/// response is not lost.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_closed_within_a_request_lingers_for_two_seconds() {
    let (mut client, server) = duplex(1 << 20);
    let mut guard = Guard::new(server, Default::default(), Default::default());
    client.write_all(POST).await.expect("sent");
    assert!(guard.read(&mut [0; 1_024]).await.expect("read") > 0);
    let began = Instant::now();
    let closing = tokio::spawn(async move { guard.shutdown().await });
    let mut sent = 0;
    while client.write_all(&[0; 1 << 16]).await.is_ok() {
        sent += 1 << 16;
        sleep(Duration::from_millis(1)).await;
    }
    closing.await.expect("no panic").expect("closed");
    assert_eq!(began.elapsed().as_secs(), 2);
    assert!(sent > 8 << 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_closed_between_requests_is_closed_at_once() {
    let (mut client, server) = duplex(1 << 20);
    let mut guard = Guard::new(server, Default::default(), Default::default());
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("sent");
    assert!(guard.read(&mut [0; 1_024]).await.expect("read") > 0);
    let began = Instant::now();
    guard.shutdown().await.expect("closed");
    assert_eq!(began.elapsed(), Duration::ZERO);
}
