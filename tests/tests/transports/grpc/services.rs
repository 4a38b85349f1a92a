//! Health and reflection.

use std::collections::BTreeSet;

use prost::Message;
use tidegate_tests::grpc::framed;

use super::Transport;

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";

const SERVING: [u8; 2] = [8, 1];
const NOT_SERVING: [u8; 2] = [8, 2];
const SERVICE_UNKNOWN: [u8; 2] = [8, 3];

fn service(name: &str) -> Vec<u8> {
    Text { text: name.into() }.encode_to_vec()
}

/// Any message whose first field is a text.
#[derive(Clone, PartialEq, Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct ReflectionRequest {
    #[prost(string, optional, tag = "3")]
    file: Option<String>,
    #[prost(string, optional, tag = "4")]
    symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    list: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ReflectionResponse {
    #[prost(message, optional, tag = "2")]
    original: Option<ReflectionRequest>,
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "6")]
    services: Option<Services>,
    #[prost(message, optional, tag = "7")]
    error: Option<ReflectionError>,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    /// Each a `FileDescriptorProto`, whose first field is its name.
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct ReflectionError {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[test]
fn health_is_told_under_both_names() {
    let transport = Transport::open();
    let mut client = transport.client();
    for name in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(client.call(CHECK, &service(name)).unwrap(), SERVING, "{name}");
    }
    assert_eq!(client.call(CHECK, &service("other")).unwrap_err().code, 5);
    // Before anything stops, clients learn not to start calls.
    transport.service.status().drain();
    assert_eq!(client.call(CHECK, &service("ratelimit")).unwrap(), NOT_SERVING);
}

#[test]
fn a_watch_reports_the_end() {
    let transport = Transport::open();
    let (mut client, mut other) = (transport.client(), transport.client());
    let mut watched = client.send(WATCH, &framed(&service("ratelimit")), &[]);
    assert_eq!(client.next(&mut watched), Some(Ok(SERVING.into())));
    let mut unknown = other.send(WATCH, &framed(&service("other")), &[]);
    assert_eq!(other.next(&mut unknown), Some(Ok(SERVICE_UNKNOWN.into())));
    std::thread::scope(|scope| {
        scope.spawn(|| transport.server.stop());
        assert_eq!(client.next(&mut watched), Some(Ok(NOT_SERVING.into())));
        let ended = client.next(&mut watched).expect("a status").unwrap_err();
        assert_eq!(ended.code, 14);
        assert_eq!(other.next(&mut unknown).expect("a status").unwrap_err().code, 14);
    });
}

#[test]
fn tools_find_out_what_can_be_asked() {
    let transport = Transport::open();
    let mut client = transport.client();
    for version in ["v1", "v1alpha"] {
        let method = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let rls = "envoy.service.ratelimit.v3.RateLimitService";
        let ask = [
            ReflectionRequest { list: Some("*".into()), ..ReflectionRequest::default() },
            ReflectionRequest { symbol: Some(rls.into()), ..ReflectionRequest::default() },
            ReflectionRequest {
                file: Some("google/protobuf/duration.proto".into()),
                ..ReflectionRequest::default()
            },
            ReflectionRequest { symbol: Some("no.Such".into()), ..ReflectionRequest::default() },
        ];
        let body: Vec<u8> =
            ask.iter().flat_map(|request| framed(&request.encode_to_vec())).collect();
        let (messages, status) = client.exchange(&method, &body, &[]);
        assert_eq!(status.code, 0);
        let answers: Vec<ReflectionResponse> =
            messages.iter().map(|it| ReflectionResponse::decode(&**it).unwrap()).collect();
        assert!(answers.iter().zip(&ask).all(|(it, ask)| it.original.as_ref() == Some(ask)));
        let services = answers[0].services.clone().unwrap().services;
        assert!(services.iter().any(|service| service.text == rls), "{services:?}");
        let files = answers[1].files.clone().unwrap().files;
        let names = files.iter().map(|file| Text::decode(&**file).unwrap().text);
        let names: BTreeSet<String> = names.collect();
        assert!(names.contains("envoy/service/ratelimit/v3/rls.proto"), "{names:?}");
        assert!(names.contains("google/protobuf/wrappers.proto"), "{names:?}");
        assert_eq!(names.len(), files.len());
        assert_eq!(answers[2].files.clone().unwrap().files.len(), 1);
        assert_eq!(answers[3].error.clone().unwrap().code, 5);
    }
}
