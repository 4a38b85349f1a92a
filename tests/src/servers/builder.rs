//! The configuration of a server to start.

use std::fmt::Write;
use std::path::PathBuf;

use super::certificates::Certificates;
use super::clock::FakeClock;
use super::folder::Folder;
use super::ports;
use super::server::{Listener, RedisServer, Setup};

/// The name of the socket in the server's folder.
pub(crate) const SOCKET: &str = "redis.sock";
/// The name of the configuration in the server's folder; sentinels and nodes rewrite their own.
const CONFIGURATION: &str = "redis.conf";

/// Collects the differences from a plain server without persistence.
#[derive(Clone, Debug)]
pub struct Builder {
    program: PathBuf,
    role: Role,
    kind: Kind,
    fake_clock: bool,
    directives: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Alone,
    Node,
    Sentinel,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp,
    Tls,
    UnixSocket,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            program: "redis-server".into(),
            role: Role::Alone,
            kind: Kind::Tcp,
            fake_clock: false,
            directives: Vec::new(),
        }
    }

    /// Adds a directive of `redis.conf`; the last one of a name takes effect.
    pub fn arg(mut self, key: &str, value: &str) -> Self {
        self.directives.push((key.into(), value.into()));
        self
    }

    /// Listens on a socket in its folder and on no port.
    pub fn unix_socket(mut self) -> Self {
        self.kind = Kind::UnixSocket;
        self
    }

    /// Speaks only TLS on its port, and only to clients with a certificate.
    pub fn tls(mut self) -> Self {
        self.kind = Kind::Tls;
        self
    }

    /// Gives the server a wall clock that [`RedisServer::step_clock`] sets.
    pub fn faketime(mut self) -> Self {
        self.fake_clock = true;
        self
    }

    /// Runs another program than `redis-server` of the path: Valkey, an older Redis.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// Makes the server a node of a cluster, whose bus needs a port too.
    pub(crate) fn node(mut self) -> Self {
        self.role = Role::Node;
        self.arg("cluster-enabled", "yes")
    }

    /// The same program without the directives.
    pub(crate) fn bare(&self) -> Self {
        Self::new().program(&self.program)
    }

    pub(crate) fn sentinel(mut self) -> Self {
        self.role = Role::Sentinel;
        self
    }

    /// Starts the server and returns once it answers; panics with its log if it does not.
    pub fn start(&self) -> RedisServer {
        RedisServer::start_from(|| self.setup())
    }

    /// A new folder and a free port for each start.
    fn setup(&self) -> Setup {
        let folder = Folder::create();
        let port = if self.role == Role::Node { ports::free_with_bus() } else { ports::free() };
        let listener = match self.kind {
            Kind::Tcp => Listener::Tcp(port),
            Kind::Tls => Listener::Tls(port, Certificates::create(&folder)),
            Kind::UnixSocket => Listener::UnixSocket,
        };
        let clock = self.fake_clock.then(|| FakeClock::create(&folder));
        let configuration = folder.write(CONFIGURATION, &self.configuration(&folder, &listener));
        let mut arguments = vec![configuration.display().to_string()];
        if self.role == Role::Sentinel {
            arguments.push("--sentinel".into());
        }
        Setup { program: self.program.clone(), arguments, folder, listener, clock }
    }

    fn configuration(&self, folder: &Folder, listener: &Listener) -> String {
        let mut text = String::new();
        let mut directive = |key: &str, value: &str| {
            writeln!(text, "{key} {value}").expect("a string grows");
        };
        let quoted = |path: PathBuf| format!("{:?}", path.display().to_string());
        directive("bind", "127.0.0.1");
        directive("dir", &quoted(folder.path().into()));
        // The control connection, separate from the tested listener.
        directive("unixsocket", &quoted(folder.file(SOCKET)));
        if self.role != Role::Sentinel {
            directive("save", "\"\"");
            directive("appendonly", "no");
            // A replica in a test does not wait for other replicas.
            directive("repl-diskless-sync-delay", "0");
        }
        match listener {
            Listener::Tcp(port) => directive("port", &port.to_string()),
            Listener::UnixSocket => directive("port", "0"),
            Listener::Tls(port, certificates) => {
                directive("port", "0");
                directive("tls-port", &port.to_string());
                directive("tls-auth-clients", "yes");
                directive("tls-ca-cert-file", &quoted(certificates.authority.clone()));
                directive("tls-cert-file", &quoted(certificates.server.certificate.clone()));
                directive("tls-key-file", &quoted(certificates.server.key.clone()));
            }
        }
        for (key, value) in &self.directives {
            directive(key, if value.is_empty() { "\"\"" } else { value });
        }
        text
    }
}
