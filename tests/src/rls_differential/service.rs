//! One of the two services, in the environment of envoyproxy/ratelimit.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::traffic::Asked;
use super::web::Web;
use super::{Edition, Fields};
use crate::grpc::GrpcClient;
use crate::servers::{Folder, Process, RedisServer, comes_true, free_port};

/// Time for a server to start, also on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The folder of policies, relative to the folder of a service.
const RUNTIME: &str = "runtime";
const SUBDIRECTORY: &str = "ratelimit";

/// The program of a service.
#[derive(Clone, Debug)]
pub enum Program {
    /// envoyproxy/ratelimit.
    Envoyproxy(PathBuf),
    /// Tidegate with the store of envoyproxy/ratelimit.
    Ours(PathBuf),
    /// Tidegate with state in memory.
    OursInMemory(PathBuf),
}

/// Environment variables besides addresses, which determine how both answer.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// The subject of the stage.
    pub name: &'static str,
    /// The variables.
    pub variables: &'static [(&'static str, &'static str)],
}

impl Stage {
    /// Every kind of answer that a variable of envoyproxy/ratelimit selects.
    pub const ALL: [Self; 8] = [
        Self { name: "as it comes", variables: &[] },
        Self {
            name: "headers and metadata",
            variables: &[
                ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
                ("RESPONSE_DYNAMIC_METADATA", "true"),
            ],
        },
        Self {
            name: "headers by other names",
            variables: &[
                ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
                ("LIMIT_LIMIT_HEADER", "X-Most"),
                ("LIMIT_REMAINING_HEADER", "X-Left"),
                ("LIMIT_RESET_HEADER", "X-Wait"),
            ],
        },
        Self {
            name: "shadow mode for all",
            variables: &[("SHADOW_MODE", "true"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
        },
        Self {
            name: "quota mode for all",
            variables: &[("QUOTA_MODE", "true"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
        },
        Self { name: "denials remembered", variables: &[("LOCAL_CACHE_SIZE_IN_BYTES", "1048576")] },
        Self {
            name: "denied hits not counted",
            variables: &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")],
        },
        Self {
            name: "prefix and merged domains",
            variables: &[("CACHE_KEY_PREFIX", "p:"), ("MERGE_DOMAIN_CONFIG", "true")],
        },
    ];
}

/// A running service, with its clients.
#[derive(Debug)]
pub struct Service {
    // Dropped first: a folder whose server still writes cannot be removed.
    process: Process,
    grpc: GrpcClient,
    web: Web,
    debug: Web,
    folder: Folder,
    _redis: RedisServer,
}

impl Service {
    /// Starts the program with a separate Redis, or returns the reason why it does not start.
    pub fn start(
        program: &Program,
        stage: &Stage,
        edition: Edition,
        policies: &Path,
    ) -> Result<Self, String> {
        let (redis, folder) = (RedisServer::start(), Folder::create());
        let there = folder.file(RUNTIME).join(SUBDIRECTORY).join("config");
        copy(policies, edition, &there).map_err(|error| error.to_string())?;
        let [http, grpc, debug] = [(); 3].map(|()| address(free_port()));
        let mut variables = environment(&redis, &folder, [http, grpc, debug]);
        let own = stage.variables.iter();
        variables.extend(own.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let (path, arguments) = program.command();
        let mut process = Process::start(path, &arguments, &variables, &folder);
        let mut web = Web::new(http);
        // Each listener starts separately.
        let listens =
            || [grpc, debug].iter().all(|transport| TcpStream::connect(transport).is_ok());
        let mut is_healthy =
            || web.ask("GET", "/healthcheck", "").is_ok_and(|page| page.status == 200);
        let mut is_up = || is_healthy() && listens();
        if !comes_true(START_LIMIT, || !process.is_running() || is_up()) || !process.is_running() {
            return Err(format!("{program:?} did not start:\n{}", folder.log_tail()));
        }
        let grpc = GrpcClient::connect(grpc);
        Ok(Self { process, grpc, web, debug: Web::new(debug), folder, _redis: redis })
    }

    /// Sends a request through its transport.
    pub fn ask(&mut self, asked: &Asked) -> Fields {
        match asked {
            Asked::Call(request) => Fields::of_call(&self.grpc.should_rate_limit(request)),
            Asked::Json { method, body } => {
                let page = self.web.ask(method, "/json", body);
                Fields::of_page(&page.unwrap_or_else(|error| self.panic(&error)))
            }
        }
    }

    /// A listing of the debug port, by lines.
    pub fn listing(&mut self, path: &str) -> Fields {
        let page = self.debug.ask("GET", path, "");
        Fields::of_lines(&page.unwrap_or_else(|error| self.panic(&error)))
    }

    /// The output of the service.
    pub fn log(&self) -> String {
        self.folder.log()
    }

    fn panic(&self, error: &std::io::Error) -> ! {
        let pid = self.process.pid();
        panic!("the service with pid {pid} does not answer: {error}\n{}", self.folder.log_tail())
    }
}

impl Program {
    fn command(&self) -> (&Path, Vec<String>) {
        // envoyproxy/ratelimit has no Redis protocol, and so no variable for its address.
        let serve = ["serve", "--compat", "envoy", "--resp", "off"];
        let (path, words): (_, &[&str]) = match self {
            Self::Envoyproxy(path) => (path, &[]),
            Self::Ours(path) => (path, &serve),
            Self::OursInMemory(path) => (path, &[&serve[..], &["--store", "memory"]].concat()),
        };
        (path, words.iter().map(|&word| word.into()).collect())
    }
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The variables that every deployment of envoyproxy/ratelimit sets.
fn environment(
    redis: &RedisServer,
    folder: &Folder,
    [http, grpc, debug]: [SocketAddr; 3],
) -> Vec<(String, String)> {
    let variables = [
        ("HOST", http.ip().to_string()),
        ("PORT", http.port().to_string()),
        ("GRPC_HOST", grpc.ip().to_string()),
        ("GRPC_PORT", grpc.port().to_string()),
        ("DEBUG_HOST", debug.ip().to_string()),
        ("DEBUG_PORT", debug.port().to_string()),
        ("REDIS_SOCKET_TYPE", "tcp".into()),
        ("REDIS_URL", redis.address()),
        // As long as the default of envoyproxy/ratelimit; a busy machine needs it.
        ("REDIS_TIMEOUT", "10s".into()),
        ("RUNTIME_ROOT", folder.file(RUNTIME).display().to_string()),
        ("RUNTIME_SUBDIRECTORY", SUBDIRECTORY.into()),
        ("RUNTIME_WATCH_ROOT", "false".into()),
        ("USE_STATSD", "false".into()),
        ("LOG_LEVEL", "error".into()),
    ];
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn copy(policies: &Path, edition: Edition, there: &Path) -> std::io::Result<()> {
    fs::create_dir_all(there)?;
    for folder in edition.folders() {
        for file in fs::read_dir(policies.join(folder))? {
            let file = file?;
            fs::copy(file.path(), there.join(file.file_name()))?;
        }
    }
    Ok(())
}
