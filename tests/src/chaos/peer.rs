//! envoyproxy/ratelimit with the same limits, for comparison.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::callers::{Callers, DAEMONS, LIMIT, MODES};
use crate::http;
use crate::servers::{Folder, Process, RedisServer, by_variable, comes_true, free_port};

const PROGRAM: &str = "TIDEGATE_ENVOY_RATELIMIT";
const START_LIMIT: Duration = Duration::from_secs(60);

/// One process of envoyproxy/ratelimit.
#[derive(Debug)]
pub(crate) struct Peer {
    // Dropped first: a folder whose process still writes cannot be removed.
    process: Process,
    transport: SocketAddr,
    _folder: Folder,
}

impl Peer {
    /// Starts as many processes as there are daemons, on one Redis.
    pub(crate) fn start_all(redis: &RedisServer) -> Result<Vec<Self>, String> {
        (0..DAEMONS).map(|_| Self::start(redis)).collect()
    }

    fn start(redis: &RedisServer) -> Result<Self, String> {
        let program = by_variable(PROGRAM).ok_or_else(|| format!("{PROGRAM} names no program"))?;
        let folder = Folder::create();
        let config = folder.path().join("ratelimit/config");
        std::fs::create_dir_all(&config).map_err(|error| error.to_string())?;
        let rule = |mode| {
            format!("  - {{key: {mode}, rate_limit: {{unit: day, requests_per_unit: {LIMIT}}}}}\n")
        };
        folder.write(
            "ratelimit/config/policy.yaml",
            &format!("domain: chaos\ndescriptors:\n{}", MODES.map(rule).concat()),
        );
        let [http, grpc, debug] = [(); 3].map(|()| free_port());
        let variables = [
            ("HOST", "127.0.0.1".into()),
            ("PORT", http.to_string()),
            ("GRPC_HOST", "127.0.0.1".into()),
            ("GRPC_PORT", grpc.to_string()),
            ("DEBUG_HOST", "127.0.0.1".into()),
            ("DEBUG_PORT", debug.to_string()),
            ("REDIS_SOCKET_TYPE", "tcp".into()),
            ("REDIS_URL", redis.address()),
            ("RUNTIME_ROOT", folder.path().display().to_string()),
            ("RUNTIME_SUBDIRECTORY", "ratelimit".into()),
            ("RUNTIME_WATCH_ROOT", "false".into()),
            ("USE_STATSD", "false".into()),
            ("LOG_LEVEL", "error".into()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let mut process = Process::start(&program, &[], &variables, &folder);
        let transport = SocketAddr::from((Ipv4Addr::LOCALHOST, http));
        let listens = || {
            let connection = http::Connection::open(transport).ok();
            let answer = connection.and_then(|mut it| it.ask("GET /healthcheck", "").ok());
            answer.is_some_and(|answer| answer.status == 200)
        };
        if !comes_true(START_LIMIT, || !process.is_running() || listens()) || !process.is_running()
        {
            return Err(format!("it did not start: {}", folder.log_tail()));
        }
        Ok(Self { process, transport, _folder: folder })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn callers(peers: &[Self]) -> Callers {
        Callers {
            transports: peers.iter().map(|peer| peer.transport).collect(),
            call: "POST /json",
            body: |mode, value| {
                format!(
                    r#"{{"domain":"chaos","descriptors":[{{"entries":[{{"key":"{mode}","value":"{value}"}}]}}]}}"#
                )
            },
        }
    }
}
