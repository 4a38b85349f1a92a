//! TLS, HTTP/2 and larger bodies with load from h2load (nghttp2): the gateway and nginx, in the
//! same rounds.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use tidegate_tests::servers::Certificates;

use super::members::{Members, NGINX, OURS};
use crate::Failure;
use crate::row::median;
use crate::server::fleet::program;
use crate::server::member::{Member, cpu};

/// The protocol and the path of the clients' requests.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    has_tls: bool,
    is_http2: bool,
    path: &'static str,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "16 KiB bodies", has_tls: false, is_http2: false, path: "/large" },
    Shape { name: "TLS", has_tls: true, is_http2: false, path: "/" },
    Shape { name: "HTTP/2", has_tls: false, is_http2: true, path: "/" },
    Shape { name: "HTTP/2 over TLS", has_tls: true, is_http2: true, path: "/" },
];

/// Requests at a time on each connection of HTTP/2.
const STREAMS: usize = 10;

/// A proxy under one shape: medians of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub shape: &'static str,
    #[serde(rename = "impl")]
    pub name: &'static str,
    pub cpu_s_per_m: f64,
    pub rps: f64,
}

/// Measures all shapes; nothing without h2load.
pub fn measure(
    members: &mut Members,
    rounds: usize,
    (connections, seconds): (usize, f64),
) -> Result<Vec<Row>, Failure> {
    let Some(h2load) = program("TIDEGATE_H2LOAD", "h2load") else {
        let why = "h2load (package nghttp2-client) is not on the path".to_owned();
        members.left_out.push(("TLS, HTTP/2 and 16 KiB bodies", why));
        return Ok(Vec::new());
    };
    let certificates = Certificates::fresh();
    let mut rows = Vec::new();
    for shape in SHAPES {
        let tls = shape.has_tls.then_some(&certificates);
        let pair = [
            (NGINX, members.nginx_for_clients(tls, shape.is_http2)?),
            (OURS, members.gateway_for_clients(tls)?),
        ];
        let mut samples = pair.each_ref().map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds {
            for ((_, member), (cpus, rates)) in pair.iter().zip(&mut samples) {
                let load = H2load { program: &h2load, shape, connections };
                load.run(member, seconds / 5.0)?;
                let before = cpu(member.pid());
                let requests = load.run(member, seconds)?;
                cpus.push((cpu(member.pid()) - before) * 1e6 / requests);
                rates.push(requests / seconds);
            }
        }
        for ((name, _), (cpus, rates)) in pair.iter().zip(samples) {
            let (cpu_s_per_m, rps) = (median(cpus), median(rates));
            eprintln!("{}, {name}: {cpu_s_per_m:.2} s/M", shape.name);
            rows.push(Row { shape: shape.name, name, cpu_s_per_m, rps });
        }
    }
    Ok(rows)
}

struct H2load<'a> {
    program: &'a Path,
    shape: Shape,
    connections: usize,
}

impl H2load<'_> {
    /// The number of requests that succeeded.
    fn run(&self, member: &Member, seconds: f64) -> Result<f64, Failure> {
        let Shape { has_tls, is_http2, path, .. } = self.shape;
        let scheme = if has_tls { "https" } else { "http" };
        let mut command = Command::new(self.program);
        command.args(["-t", "1", "-c", &self.connections.to_string()]);
        command.args(["-D", &format!("{}ms", (seconds * 1e3).max(100.0).round())]);
        match is_http2 {
            true => command.args(["-m", &STREAMS.to_string()]),
            false => command.arg("--h1"),
        };
        let out = command.arg(format!("{scheme}://{}{path}", member.address(0))).output();
        let out = out.map_err(|error| format!("h2load does not start: {error}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let (done, failed) = counts(&text).ok_or_else(|| format!("h2load says {text}"))?;
        if done == 0.0 || failed > 0.0 {
            return Err(format!("{}: {failed} of {done} failed", self.shape.name).into());
        }
        Ok(done)
    }
}

/// Requests with a status of 2xx, and all others.
fn counts(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("status codes: "))?;
    let mut counts = line.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
    Some((counts.next()?, counts.sum()))
}

/// The file that `/large` answers with.
pub fn large(folder: &Path) -> std::io::Result<PathBuf> {
    let file = folder.join("large");
    std::fs::write(&file, [b'x'; 16 << 10])?;
    Ok(file)
}
