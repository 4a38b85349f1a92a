//! Ways to protect a backend, side by side.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_tests::http::Connection;

use super::backend::{self, Inside, PROTECT, Setup, policy, policy_by_class};
use super::cell::Pair;
use super::cpu::{BACKEND, Priority, edge};
use crate::server::fleet::program;
use crate::server::member::Member;

/// The protection between the clients and the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contender {
    None,
    Tower,
    Tidegate,
    Gateway,
    /// The gateway without a limiter: for a fragile backend with and without one.
    BareGateway,
    Envoy,
    Netflix,
    Failsafe,
    /// Other estimators of the library, behind the same layer.
    Fixed,
    Aimd,
    Gradient2,
}

impl Contender {
    /// The contenders of experiments with peers.
    pub const PEERS: [Self; 7] = [
        Self::None,
        Self::Tower,
        Self::Envoy,
        Self::Netflix,
        Self::Failsafe,
        Self::Tidegate,
        Self::Gateway,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Tower => "tower",
            Self::Tidegate => "tidegate",
            Self::Gateway => "gateway",
            Self::BareGateway => "bare-gateway",
            Self::Envoy => "envoy",
            Self::Netflix => "netflix",
            Self::Failsafe => "failsafe",
            Self::Fixed => "fixed",
            Self::Aimd => "aimd",
            Self::Gradient2 => "gradient2",
        }
    }

    /// Its description on the page.
    pub const fn title(self) -> &'static str {
        match self {
            Self::None => "no limiter",
            Self::Tower => "tower ConcurrencyLimit(32) + LoadShed",
            Self::Tidegate => "Tidegate, layer",
            Self::Gateway => "Tidegate, gateway",
            Self::BareGateway => "gateway without `protect`",
            Self::Envoy => "Envoy adaptive_concurrency",
            Self::Netflix => "Netflix Gradient2 (Java)",
            Self::Failsafe => "failsafe-go",
            Self::Fixed => "Tidegate, `fixed` 32",
            Self::Aimd => "Tidegate, `aimd`",
            Self::Gradient2 => "Tidegate, `gradient2`",
        }
    }

    /// Whether it is a server in another language, which has only the backend P.
    pub const fn is_foreign(self) -> bool {
        matches!(self, Self::Netflix | Self::Failsafe)
    }

    fn inside(self) -> Inside {
        let protect = match self {
            Self::Tower => return Inside::Tower,
            Self::Tidegate => PROTECT,
            Self::Fixed => "{name: api, estimator: fixed, limit: 32}",
            Self::Aimd => "{name: api, estimator: aimd, slow_after: 100ms}",
            Self::Gradient2 => "{name: api, estimator: gradient2}",
            _ => return Inside::None,
        };
        Inside::Tidegate(protect.to_owned())
    }
}

/// The source of the current limit.
#[derive(Clone, Debug)]
enum Limit {
    Nowhere,
    Backend(SocketAddr),
    Metrics(SocketAddr),
    Envoy(SocketAddr),
}

/// A protected backend whose processes run.
pub struct Rig {
    /// The address for clients.
    pub address: SocketAddr,
    /// The address of the backend, which makes workers fail and requests slow.
    pub backend: SocketAddr,
    limit: Limit,
    _members: Vec<Member>,
}

impl Rig {
    /// Starts the processes. `has_classes` configures the peers' own way to prefer important requests.
    pub fn start(
        contender: Contender,
        setup: &Setup,
        priority: Priority,
        has_classes: bool,
    ) -> Result<Self, String> {
        if contender.is_foreign() {
            return Self::foreign(contender, setup, priority, has_classes);
        }
        let inside = setup.clone().with(match &setup.limiter {
            Inside::None => contender.inside(),
            own => own.clone(),
        });
        let backend = start_backend(&inside, priority)?;
        let address = backend.address(0);
        let proxy = match contender {
            Contender::Envoy => Some(envoy(address.port(), priority)?),
            Contender::Gateway => {
                Some(gateway(&[("all", address.port(), "/")], Some(&policy(PROTECT)), priority)?)
            }
            Contender::BareGateway => {
                Some(gateway(&[("all", address.port(), "/")], None, priority)?)
            }
            _ => None,
        };
        let front = proxy.as_ref().unwrap_or(&backend);
        let limit = match contender {
            Contender::Envoy => Limit::Envoy(front.address(1)),
            Contender::Gateway => Limit::Metrics(front.address(1)),
            Contender::None | Contender::Tower | Contender::BareGateway => Limit::Nowhere,
            _ => Limit::Backend(address),
        };
        let address_of_front = front.address(0);
        let members = [proxy, Some(backend)].into_iter().flatten().collect();
        Ok(Self { address: address_of_front, backend: address, limit, _members: members })
    }

    /// A gateway in front of two backends.
    pub fn pair(setup: &Setup, pair: Pair) -> Result<Self, String> {
        let first = start_backend(setup, Priority::RealTime)?;
        let second = start_backend(setup, Priority::RealTime)?;
        let routes = [
            ("first", first.port(0), "/critical, /write"),
            ("second", second.port(0), "/read, /test"),
        ];
        let policy = match pair {
            Pair::Both => policy(PROTECT),
            Pair::Each => policy_by_class(
                "{name: first}\n  - {name: second}",
                ["first", "first", "second", "second"],
            ),
        };
        let front = gateway(&routes, Some(&policy), Priority::RealTime)?;
        let (address, backend) = (front.address(0), first.address(0));
        Ok(Self { address, backend, limit: Limit::Nowhere, _members: vec![front, first, second] })
    }

    fn foreign(
        contender: Contender,
        setup: &Setup,
        priority: Priority,
        has_classes: bool,
    ) -> Result<Self, String> {
        let numbers = |port: u16| {
            let classes = u8::from(has_classes);
            let Setup { mean_us, workers, seed, .. } = setup;
            format!("{port} {mean_us} {workers} {seed} {classes}")
        };
        let member = if contender == Contender::Netflix {
            let folder = named("TIDEGATE_OVERLOAD_NETFLIX")?;
            let java = program("TIDEGATE_JAVA", "java").ok_or("java is not on the path")?;
            let recipe = BACKEND.recipe(&java, 1, priority);
            let folder = folder.display().to_string();
            let numbers = numbers(recipe.ports[0]);
            let classpath = format!("{folder}:{folder}/*");
            recipe.with(&format!("-Xmx512m -cp {classpath} Server {numbers}")).start()?
        } else {
            let program = named("TIDEGATE_OVERLOAD_FAILSAFE")?;
            let mut recipe = BACKEND.recipe(&program, 1, priority);
            recipe.variables.push(("GOMAXPROCS".into(), "1".into()));
            let numbers = numbers(recipe.ports[0]);
            recipe.with(&numbers).start()?
        };
        let address = member.address(0);
        let limit = Limit::Backend(address);
        Ok(Self { address, backend: address, limit, _members: vec![member] })
    }

    /// A way to read the limit from another thread.
    pub fn limit(&self) -> impl FnMut() -> Option<u32> + Send + use<> {
        let limit = self.limit.clone();
        let mut open = None;
        move || {
            let (address, call) = match &limit {
                Limit::Nowhere => return None,
                Limit::Backend(address) => (address, "GET /limit"),
                Limit::Metrics(address) => (address, "GET /metrics"),
                // The body is in chunks, whose lengths are on separate lines.
                Limit::Envoy(address) => {
                    let stats = fetch(*address, "/stats?filter=concurrency_limit").ok()?;
                    return limit_in(&stats);
                }
            };
            let mut connection = match open.take() {
                Some(connection) => connection,
                None => Connection::open(address).ok()?,
            };
            let answer = connection.ask(call, "").ok()?;
            open = Some(connection);
            limit_in(&answer.body)
        }
    }
}

/// All bytes that a server sends before it ends the connection.
fn fetch(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The last number of the first line that is about the limit, or of a text that is nothing else.
fn limit_in(text: &str) -> Option<u32> {
    let is_limit = |line: &&str| {
        line.starts_with("tidegate_concurrency_limit{")
            || line.contains("gradient_controller.concurrency_limit:")
    };
    text.lines().find(is_limit).unwrap_or(text).rsplit(' ').next()?.trim().parse().ok()
}

fn named(variable: &str) -> Result<PathBuf, String> {
    let path = env::var_os(variable).ok_or_else(|| format!("{variable} does not name it"))?;
    std::path::absolute(path).map_err(|error| error.to_string())
}

fn start_backend(setup: &Setup, priority: Priority) -> Result<Member, String> {
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let mut recipe = BACKEND.recipe(&own, 1, priority);
    let setup = serde_json::to_string(setup).map_err(|error| error.to_string())?;
    recipe.arguments.extend([backend::COMMAND.to_owned(), setup, recipe.ports[0].to_string()]);
    recipe.start()
}

fn envoy(backend: u16, priority: Priority) -> Result<Member, String> {
    let program = program("TIDEGATE_ENVOY", "envoy").ok_or("Envoy is not installed")?;
    let recipe = edge(priority).recipe(&program, 2, Priority::RealTime);
    let text = include_str!("conf/envoy.yaml")
        .replace("@PORT@", &recipe.ports[0].to_string())
        .replace("@ADMIN@", &recipe.ports[1].to_string())
        .replace("@BACKEND@", &backend.to_string());
    let file = recipe.file("envoy.yaml", &text);
    recipe
        .with(&format!("-c {file} --concurrency 1 --log-level error --disable-hot-restart"))
        .start()
}

/// The gateway in front of services, each with its name, port and routes.
fn gateway(
    services: &[(&str, u16, &str)],
    policy: Option<&str>,
    priority: Priority,
) -> Result<Member, String> {
    let missing = "the gateway is not built: TIDEGATE_PROGRAM does not name it";
    let program = program("TIDEGATE_PROGRAM", "tidegate").ok_or(missing)?;
    let mut recipe = edge(priority).recipe(&program, 2, Priority::RealTime);
    recipe.variables.push(("TIDEGATE__THREADS".into(), "1".into()));
    let service = |(name, port, routes): &(&str, u16, &str)| {
        format!(
            "    {name}: {{urls: [\"http://127.0.0.1:{port}\"], routes: [{routes}], max_connections: 4000}}\n"
        )
    };
    let services: String = services.iter().map(service).collect();
    let settings = recipe.file("settings.yaml", &format!("gateway:\n  upstreams:\n{services}"));
    let (listen, admin) = (recipe.ports[0], recipe.ports[1]);
    let policy = policy.map(|policy| recipe.file("policy.yaml", policy));
    let policy = policy.map_or_else(String::new, |file| format!(" --config {file}"));
    recipe
        .with(&format!(
            "gateway --listen 127.0.0.1:{listen} --admin 127.0.0.1:{admin} --settings {settings}{policy}"
        ))
        .start()
}
