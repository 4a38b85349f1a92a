//! Cells: the server, its transport, and the load.

use std::net::SocketAddr;

use serde::Serialize;

use super::calls;
use super::fleet::{
    ENVOY, Fleet, GRPC, HTTP, LIMITADOR, LIMITADOR_IN_REDIS, NGINX, OURS, OURS_ALONE,
    OURS_IN_REDIS, OURS_LEASED, OURS_UNLEASED, RATELIMIT, REDIS, RESP, RESP_FLOOR, RLS_FLOOR,
    RLS_FLOOR_ALONE, THROTTLECRAB,
};
use super::load::{Load, Speech};
use super::wire::{Answers, Template, command, get, post};

/// Connections, and calls under way.
const MANY: usize = 50;
const DEEP: usize = 16;
/// Number of leased keys: few, so that each gets many requests.
const HOT: u32 = 4;

/// The transport of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    Resp,
    /// An HTTP request with its limit, or without a limit.
    Http,
    /// The request of a proxy.
    HttpAuth,
    Grpc,
    /// With the state in Redis.
    GrpcRedis,
    /// For a few hot keys of a leased limit.
    GrpcLeased,
    /// Through Envoy without a rate limit filter.
    EnvoyAlone,
    /// Through Envoy, which asks this one.
    Envoy,
    /// No transport: the memory of a million keys.
    Memory,
}

/// One measurement.
pub struct Cell {
    pub name: &'static str,
    pub transport: Transport,
    pub load: Load,
    /// The process whose processor time counts.
    pub pid: u32,
    /// The Redis behind it, whose processor time counts as well.
    pub store: Option<u32>,
    /// Whether every key gets one request before the first round.
    pub fills: bool,
}

impl Cell {
    /// All cells for the servers that run.
    pub fn all(fleet: &Fleet, keys: u32) -> Vec<Self> {
        let mut all = Plan { fleet, keys, cells: Vec::new() };
        for pipeline in [1, DEEP] {
            all.resp(pipeline);
        }
        all.http();
        for conns in [4, DEEP] {
            all.grpc(conns);
        }
        all.behind_redis();
        for conns in [4, DEEP] {
            all.leased(conns);
        }
        for conns in [1, MANY] {
            all.behind_envoy(conns);
        }
        all.cells
    }

    pub fn pipeline(&self) -> Option<usize> {
        match self.load.speech {
            Speech::Bytes { answers: Answers::Resp, pipeline } => Some(pipeline),
            Speech::Bytes { .. } | Speech::Calls { .. } => None,
        }
    }

    pub fn label(&self) -> String {
        let pipeline = self.pipeline().map_or_else(String::new, |depth| format!(" P{depth}"));
        format!("{:?} {} c{}{pipeline}", self.transport, self.name, self.load.conns)
    }

    /// Factor of the measurement's length: longer for servers that get fewer requests and use less
    /// processor time.
    pub fn patience(&self) -> u32 {
        if matches!(self.transport, Transport::Envoy | Transport::EnvoyAlone) { 2 } else { 1 }
    }
}

struct Plan<'a> {
    fleet: &'a Fleet,
    keys: u32,
    cells: Vec<Cell>,
}

impl Plan<'_> {
    fn resp(&mut self, pipeline: usize) {
        let speech = Speech::Bytes { answers: Answers::Resp, pipeline };
        let cell = command(&["CL.THROTTLE", "{key}", "15", "30", "60"]);
        let crab = command(&["THROTTLE", "{key}", "15", "30", "60"]);
        if let Some(redis) = self.fleet.store(REDIS) {
            let address = ([127, 0, 0, 1], redis.port()).into();
            let load = self.load(address, speech, command(&["INCR", "{key}"]), MANY);
            self.push(REDIS, Transport::Resp, redis.pid(), load);
        }
        for (name, template) in
            [(RESP_FLOOR, &cell), (THROTTLECRAB, &crab), (OURS_ALONE, &cell), (OURS, &cell)]
        {
            self.ask(name, Transport::Resp, 0, (speech, template, MANY));
            if let Some(cell) = self.cells.last_mut().filter(|cell| cell.name == name) {
                // Once is enough, and one at a time: throttlecrab stalls on more.
                cell.fills = pipeline == 1 && name != RESP_FLOOR;
            }
        }
    }

    fn http(&mut self) {
        let speech = Speech::Bytes { answers: Answers::Http, pipeline: 1 };
        let root = get("/");
        let auth = get("/v1/auth");
        let check = post("/v1/check", r#"{"key":"{key}","rate":"30/60s","burst":16}"#);
        let crab = post(
            "/throttle",
            r#"{"key":"{key}","max_burst":15,"count_per_period":30,"period":60,"quantity":1}"#,
        );
        let limitador = post(
            "/check_and_report",
            r#"{"namespace":"bench","values":{"user_id":"{key}"},"delta":1}"#,
        );
        for (name, transport, port, template) in [
            ("nginx_204", Transport::Http, 0, &root),
            ("nginx_limit_req", Transport::Http, 1, &root),
            (THROTTLECRAB, Transport::Http, 1, &crab),
            (LIMITADOR, Transport::Http, 0, &limitador),
            (OURS_ALONE, Transport::HttpAuth, HTTP, &auth),
            (OURS, Transport::HttpAuth, HTTP, &auth),
            (OURS_ALONE, Transport::Http, HTTP, &check),
            (OURS, Transport::Http, HTTP, &check),
        ] {
            self.ask(name, transport, port, (speech, template, MANY));
        }
    }

    fn grpc(&mut self, conns: usize) {
        let (speech, template) = (Speech::Calls { streams: MANY }, calls::template());
        for (name, port) in
            [(RLS_FLOOR_ALONE, 0), (RLS_FLOOR, 0), (LIMITADOR, 1), (OURS_ALONE, GRPC), (OURS, GRPC)]
        {
            self.ask(name, Transport::Grpc, port, (speech, &template, conns));
            if let Some(cell) = self.cells.last_mut().filter(|cell| cell.name == name) {
                cell.fills = conns == 4 && ![RLS_FLOOR, RLS_FLOOR_ALONE].contains(&name);
            }
        }
    }

    fn behind_redis(&mut self) {
        let (speech, template) = (Speech::Calls { streams: MANY }, calls::template());
        for (name, port) in [(LIMITADOR_IN_REDIS, 1), (RATELIMIT, 0), (OURS_IN_REDIS, GRPC)] {
            self.ask(name, Transport::GrpcRedis, port, (speech, &template, 4));
        }
    }

    fn leased(&mut self, conns: usize) {
        let (speech, template) = (Speech::Calls { streams: MANY }, calls::template());
        for name in [OURS_UNLEASED, OURS_LEASED] {
            self.ask(name, Transport::GrpcLeased, GRPC, (speech, &template, conns));
            if let Some(cell) = self.cells.last_mut().filter(|cell| cell.name == name) {
                cell.load.keys = HOT;
            }
        }
    }

    fn behind_envoy(&mut self, conns: usize) {
        let Some(envoy) = self.fleet.get(ENVOY) else { return };
        let speech = Speech::Bytes { answers: Answers::Http, pipeline: 1 };
        let load = |port| self.load(envoy.address(port), speech, get("/"), conns);
        let alone = load(0);
        let others = [RLS_FLOOR, LIMITADOR, OURS].into_iter().enumerate();
        let others: Vec<_> = others.map(|(number, name)| (name, load(number + 1))).collect();
        self.push(ENVOY, Transport::EnvoyAlone, envoy.pid(), alone);
        for (name, load) in others {
            if let Some(member) = self.fleet.get(name) {
                self.push(name, Transport::Envoy, member.pid(), load);
            }
        }
    }

    /// Adds a cell if its server runs.
    fn ask(
        &mut self,
        name: &'static str,
        transport: Transport,
        port: usize,
        (speech, template, conns): (Speech, &Template, usize),
    ) {
        let who = if name.starts_with(NGINX) { NGINX } else { name };
        let Some(member) = self.fleet.get(who) else { return };
        let load = self.load(member.address(port), speech, template.clone(), conns);
        self.push(name, transport, member.pid(), load);
    }

    fn load(&self, address: SocketAddr, speech: Speech, template: Template, conns: usize) -> Load {
        Load { address, speech, template, conns, keys: self.keys }
    }

    fn push(&mut self, name: &'static str, transport: Transport, pid: u32, load: Load) {
        let is_behind = matches!(transport, Transport::GrpcRedis | Transport::GrpcLeased);
        let store = self.fleet.store(name).filter(|_| is_behind);
        let store = store.map(tidegate_tests::servers::RedisServer::pid);
        self.cells.push(Cell { name, transport, load, pid, store, fills: false });
    }
}

/// The first port of a server is that of the Redis protocol, if it has one.
const _: () = assert!(RESP == 0);
