//! The verbs of the daemon: over HTTP, gRPC and RESP.

use std::num::NonZeroUsize;

use redis::{Cmd, Pipeline};
use serde_json::{Value, json};
use tidegate::policy::{Merging, Policy};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http;
use tidegate_tests::rls::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use super::{EACH, Interface, POLICY, Seen, Verb};

fn daemon(text: &str) -> Server {
    let any = || Some(([127, 0, 0, 1], 0).into());
    let threads = NonZeroUsize::MIN;
    let settings =
        Settings { http: any(), grpc: any(), resp: any(), threads, ..Settings::default() };
    let service = RateLimitService::new().expect("memory");
    let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
    service.replace(loaded.policy.expect("a policy"));
    serve(&settings, &service).expect("free ports")
}

/// `/v1`.
pub(crate) struct Http(Server);

impl Http {
    pub(crate) fn new() -> Self {
        Self(daemon(POLICY))
    }

    fn ask(&self, path: &str, question: &Value) -> Value {
        let address = self.0.http().expect("a listener");
        let answer = http::ask(address, &format!("POST {path}"), "", &question.to_string());
        serde_json::from_str(&answer.body).expect("a document")
    }

    fn decide(&self, path: &str, user: &str, cost: u64) -> Value {
        self.ask(path, &json!({"domain": "api", "descriptors": [{"user": user}], "cost": cost}))
    }
}

fn seen(document: &Value) -> Seen {
    (document["allowed"] == true, document["remaining"].as_u64().expect("a number"))
}

impl Interface for Http {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen {
        let path = match verb {
            Verb::Check => "/v1/check",
            Verb::Peek => "/v1/peek",
            Verb::Refund => "/v1/refund",
            Verb::Reset => "/v1/reset",
        };
        seen(&self.decide(path, user, cost))
    }

    fn together(&mut self, user: &str, tenant: &str) -> bool {
        let descriptors = json!([{"user": user}, {"tenant": tenant}]);
        let question = json!({"domain": "api", "descriptors": descriptors});
        self.ask("/v1/check", &question)["allowed"] == true
    }

    fn each(&mut self, users: [&str; 2]) -> [bool; 2] {
        let question = |user| json!({"domain": "api", "descriptors": [{"user": user}]});
        let answered = self.ask("/v1/batch", &json!({"questions": users.map(question)}));
        [0, 1].map(|number| answered["answers"][number]["allowed"] == true)
    }

    fn report(&mut self, user: &str) -> (Vec<String>, u64) {
        let document = self.decide("/v1/check", user, 1);
        let limits = document["limits"].as_array().expect("limits").iter();
        let names = limits.map(|limit| limit["name"].as_str().expect("a name").to_owned());
        (names.collect(), seen(&document).1)
    }

    fn explain(&mut self, user: &str) -> String {
        let document = self.decide("/v1/explain", user, 1);
        format!("{} of {}", document["remaining"], document["limit"])
    }

    fn settle(&mut self, user: &str) -> (u64, u64) {
        let question = json!({"domain": "api", "descriptors": [{"model": user}]});
        let document = self.ask("/v1/check", &question);
        let outcome = json!({"reservation": document["reservation"], "actual": 2});
        assert_eq!(self.ask("/v1/settle", &outcome)["returned"], 1);
        assert_eq!(self.ask("/v1/settle", &outcome)["not_open"], 1);
        (seen(&document).1, seen(&self.ask("/v1/peek", &question)).1)
    }

    fn permits(&mut self) -> (usize, usize) {
        let question = json!({"domain": "api", "descriptors": [{"job": "j"}]});
        let acquire = || self.ask("/v1/acquire", &question)["lease"].as_str().map(str::to_owned);
        let held = [acquire(), acquire(), acquire()];
        let lease = json!({ "lease": held[0] });
        assert_eq!(self.ask("/v1/renew", &lease)["renewed"], true);
        assert_eq!(self.ask("/v1/release", &lease)["released"], true);
        let again = [acquire(), acquire()];
        (held.iter().flatten().count(), again.iter().flatten().count())
    }
}

/// `envoy.service.ratelimit.v3.RateLimitService`.
pub(crate) struct Grpc {
    client: GrpcClient,
    each: GrpcClient,
    _servers: [Server; 2],
}

impl Grpc {
    pub(crate) fn new() -> Self {
        let servers = [daemon(POLICY), daemon(EACH)];
        let client = |server: &Server| GrpcClient::connect(server.grpc().expect("a listener"));
        Self { client: client(&servers[0]), each: client(&servers[1]), _servers: servers }
    }
}

/// One descriptor each.
fn request(entries: &[(&str, &str)]) -> RateLimitRequest {
    let descriptors = entries
        .iter()
        .flat_map(|(key, value)| RateLimitRequest::one("api", key, value).descriptors);
    RateLimitRequest { descriptors: descriptors.collect(), ..RateLimitRequest::one("api", "", "") }
}

fn ask(client: &mut GrpcClient, request: &RateLimitRequest) -> RateLimitResponse {
    client.should_rate_limit(request).expect("an answer")
}

impl Interface for Grpc {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen {
        let mut request = request(&[("user", user)]);
        let is_negative_hits = verb == Verb::Refund;
        let [descriptor] = &mut request.descriptors[..] else { panic!("one descriptor") };
        *descriptor =
            RateLimitDescriptor { hits_addend: Some(cost), is_negative_hits, ..descriptor.clone() };
        let response = ask(&mut self.client, &request);
        (response.is_ok(), response.statuses[0].limit_remaining.into())
    }

    fn together(&mut self, user: &str, tenant: &str) -> bool {
        ask(&mut self.client, &request(&[("user", user), ("tenant", tenant)])).is_ok()
    }

    fn each(&mut self, users: [&str; 2]) -> [bool; 2] {
        // Under `charge: each` the user is charged though the tenant denies.
        let both = request(&[("user", users[1]), ("tenant", "of each")]);
        assert!(ask(&mut self.each, &both).is_ok() && !ask(&mut self.each, &both).is_ok());
        let left = ask(&mut self.each, &request(&[("user", users[1])]));
        assert_eq!(left.statuses[0].limit_remaining, 2);
        users.map(|user| ask(&mut self.client, &request(&[("user", user)])).is_ok())
    }

    fn report(&mut self, user: &str) -> (Vec<String>, u64) {
        let response = ask(&mut self.client, &request(&[("user", user)]));
        let [status] = &response.statuses[..] else { panic!("one status") };
        assert_eq!(status.current_limit.as_ref().map(|limit| limit.requests_per_unit), Some(5));
        // The limit has no name of its own, and the protocol no path of its rule.
        (vec!["user".to_owned()], status.limit_remaining.into())
    }
}

/// `TG.*`.
pub(crate) struct Resp {
    connection: redis::Connection,
    _server: Server,
}

/// Limited, limit, remaining, retry after, reset after, and the name of the limit.
type Reply = (i64, i64, i64, i64, i64, String);

impl Resp {
    pub(crate) fn new() -> Self {
        let server = daemon(POLICY);
        let address = server.resp().expect("a listener");
        let client = redis::Client::open(format!("redis://{address}")).expect("an address");
        Self { connection: client.get_connection().expect("a connection"), _server: server }
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        command(words).query(&mut self.connection).expect("a reply")
    }

    /// The lease of a place, if there was one.
    fn acquire(&mut self) -> Option<String> {
        let command = command(&["TG.ACQUIRE", "api", "job", "j"]);
        let reply: (i64, i64, i64, i64, i64, String, String) =
            command.query(&mut self.connection).expect("a reply");
        Some(reply.6).filter(|lease| !lease.is_empty())
    }
}

fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command
}

impl Interface for Resp {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen {
        let name = match verb {
            Verb::Check => "TG.CHECK",
            Verb::Peek => "TG.PEEK",
            Verb::Refund => "TG.REFUND",
            Verb::Reset => "TG.RESET",
        };
        let reply = self.ask(&[name, "api", "user", user, "COST", &cost.to_string()]);
        (reply.0 == 0, reply.2.unsigned_abs())
    }

    fn together(&mut self, user: &str, tenant: &str) -> bool {
        self.ask(&["TG.CHECK", "api", "user", user, "AND", "tenant", tenant]).0 == 0
    }

    fn each(&mut self, users: [&str; 2]) -> [bool; 2] {
        let mut pipeline = Pipeline::new();
        for user in users {
            pipeline.add_command(command(&["TG.CHECK", "api", "user", user]));
        }
        let replies: Vec<Reply> = pipeline.query(&mut self.connection).expect("replies");
        [replies[0].0 == 0, replies[1].0 == 0]
    }

    fn report(&mut self, user: &str) -> (Vec<String>, u64) {
        let reply = self.ask(&["TG.CHECK", "api", "user", user]);
        (vec![reply.5], reply.2.unsigned_abs())
    }

    fn settle(&mut self, user: &str) -> (u64, u64) {
        type Reserved = (i64, i64, i64, i64, i64, String, String);
        let check = command(&["TG.CHECK", "api", "model", user]);
        let reserved: Reserved = check.query(&mut self.connection).expect("a reservation");
        for returned in [[1, 0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]] {
            let settle = command(&["TG.SETTLE", &reserved.6, "ACTUAL", "2"]);
            let told: [u64; 7] = settle.query(&mut self.connection).expect("seven numbers");
            assert_eq!(told, returned);
        }
        let left = self.ask(&["TG.PEEK", "api", "model", user]);
        (reserved.2.unsigned_abs(), left.2.unsigned_abs())
    }

    fn permits(&mut self) -> (usize, usize) {
        let held = [(); 3].map(|()| self.acquire());
        for name in ["TG.RENEW", "TG.RELEASE"] {
            let lease = held[0].as_deref().expect("a lease");
            let done: i64 = command(&[name, lease]).query(&mut self.connection).expect("a reply");
            assert_eq!(done, 1);
        }
        let again = [(); 2].map(|()| self.acquire());
        (held.iter().flatten().count(), again.iter().flatten().count())
    }
}
