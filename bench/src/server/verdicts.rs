//! The targets of the transports, each a ratio within one run.

use super::cell::Transport;
use super::fleet::{
    ENVOY, LIMITADOR, LIMITADOR_IN_REDIS, OURS, OURS_ALONE, OURS_IN_REDIS, OURS_LEASED,
    OURS_UNLEASED, RATELIMIT, REDIS, RESP_FLOOR, RLS_FLOOR, RLS_FLOOR_ALONE, THROTTLECRAB,
};
use super::row::{Rounds, Row};
use crate::targets::{Bound, Target};

pub fn evaluate(rounds: &[Rounds], memory: &[Row]) -> Vec<Target> {
    let run = Run { rounds };
    let mut targets = run.resp();
    targets.extend(run.http());
    targets.extend(run.grpc());
    targets.extend(run.leased());
    targets.extend(run.envoy());
    let grown = memory.iter().find(|row| row.name == OURS).map(|row| row.rss_mib);
    targets.push(Target::new("1M keys, MiB over the empty daemon", Bound::AtMost(40.0), grown));
    targets
}

struct Run<'a> {
    rounds: &'a [Rounds],
}

impl Run<'_> {
    fn find(
        &self,
        name: &str,
        transport: Transport,
        pipeline: Option<usize>,
        conns: usize,
    ) -> Option<&Row> {
        let rows = self.rounds.iter().map(|rounds| &rounds.row);
        let is_it =
            |row: &&Row| (row.name, row.transport, row.pipeline) == (name, transport, pipeline);
        rows.filter(is_it).find(|row| row.conns == Some(conns))
    }

    fn resp(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        for depth in [1, 16] {
            let row = |name| self.find(name, Transport::Resp, Some(depth), 50);
            for (ours, peer, most) in [
                (OURS_ALONE, RESP_FLOOR, 1.15),
                (OURS_ALONE, REDIS, 1.0),
                (OURS, REDIS, 1.0),
                (OURS, THROTTLECRAB, 1.0),
            ] {
                let what = format!("RESP, pipeline {depth}, CPU of {ours} / {peer}");
                targets.push(at_most(&what, most, cpu(row(ours), row(peer))));
            }
            for peer in [REDIS, THROTTLECRAB] {
                let what = format!("RESP, pipeline {depth}, p99 of {OURS} / {peer}");
                targets.push(at_most(&what, 1.0, p99(row(OURS), row(peer))));
            }
        }
        targets
    }

    fn http(&self) -> Vec<Target> {
        let nginx = self.find("nginx_limit_req", Transport::Http, None, 50);
        let transports =
            [(Transport::HttpAuth, "GET /v1/auth"), (Transport::Http, "POST /v1/check")];
        let both = transports.map(|(transport, what)| {
            // nginx has one worker.
            [OURS_ALONE, OURS].map(|name| {
                let ours = self.find(name, transport, None, 50);
                let answer = |of| format!("{what}, {of} of {name} / nginx limit_req");
                [
                    at_most(&answer("CPU"), 1.0, cpu(ours, nginx)),
                    at_most(&answer("p99"), 1.0, p99(ours, nginx)),
                ]
            })
        });
        both.into_iter().flatten().flatten().collect()
    }

    fn grpc(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        for conns in [4, 16] {
            let row = |name| self.find(name, Transport::Grpc, None, conns);
            for (ours, peer, most) in
                [(OURS_ALONE, RLS_FLOOR_ALONE, 1.0), (OURS, RLS_FLOOR, 1.0), (OURS, LIMITADOR, 0.4)]
            {
                let what = format!("gRPC, {conns} connections, CPU of {ours} / {peer}");
                targets.push(at_most(&what, most, cpu(row(ours), row(peer))));
            }
            let what = format!("gRPC, {conns} connections, p99 of {OURS} / {LIMITADOR}");
            targets.push(at_most(&what, 1.0, p99(row(OURS), row(LIMITADOR))));
        }
        let row = |name| self.find(name, Transport::GrpcRedis, None, 4);
        for peer in [LIMITADOR_IN_REDIS, RATELIMIT] {
            let what = format!("gRPC in Redis, CPU with Redis / {peer}");
            let both = row(OURS_IN_REDIS).zip(row(peer));
            let ratio = both.map(|(ours, peer)| ours.whole_cpu() / peer.whole_cpu());
            targets.push(at_most(&what, 0.4, ratio));
        }
        targets
    }

    fn leased(&self) -> Vec<Target> {
        let targets = [4, 16].map(|conns| {
            let row = |name| self.find(name, Transport::GrpcLeased, None, conns);
            let what = format!("gRPC, leased, {conns} connections, CPU / the same in memory");
            at_most(&what, 1.2, cpu(row(OURS_LEASED), row(OURS_UNLEASED)))
        });
        targets.into()
    }

    fn envoy(&self) -> Vec<Target> {
        let alone = self.find(ENVOY, Transport::EnvoyAlone, None, 1);
        let hop = |name| {
            let asked = self.find(name, Transport::Envoy, None, 1)?;
            Some(asked.p50_us - alone?.p50_us)
        };
        let added = hop(OURS).zip(hop(RLS_FLOOR)).map(|(ours, floor)| ours / floor);
        let row = |name| self.find(name, Transport::Envoy, None, 50);
        vec![
            at_most("behind Envoy, added p50 / that of the no-op service", 1.1, added),
            at_most("behind Envoy, CPU / limitador", 0.5, cpu(row(OURS), row(LIMITADOR))),
        ]
    }
}

fn at_most(what: &str, most: f64, value: Option<f64>) -> Target {
    Target::new(what, Bound::AtMost(most), value)
}

fn cpu(ours: Option<&Row>, peer: Option<&Row>) -> Option<f64> {
    Some(ours?.cpu_s_per_m / peer?.cpu_s_per_m)
}

fn p99(ours: Option<&Row>, peer: Option<&Row>) -> Option<f64> {
    Some(ours?.p99_us / peer?.p99_us)
}
