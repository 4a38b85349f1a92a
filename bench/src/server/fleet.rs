//! All servers of a run, which run at the same time.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use tidegate_tests::servers::RedisServer;

use super::member::{Member, Recipe};
use super::proxies;

/// The daemon with a thread for each core of two, and with one.
pub const OURS: &str = "tidegate";
pub const OURS_ALONE: &str = "tidegate_1t";
pub const OURS_IN_REDIS: &str = "tidegate_redis";
/// By one policy, of leased limits: with the state in Redis, and in memory.
pub const OURS_LEASED: &str = "tidegate_leased";
pub const OURS_UNLEASED: &str = "tidegate_leased_in_memory";
pub const REDIS: &str = "redis";
pub const RESP_FLOOR: &str = "resp_floor";
pub const RLS_FLOOR: &str = "rls_floor";
pub const RLS_FLOOR_ALONE: &str = "rls_floor_1t";
pub const THROTTLECRAB: &str = "throttlecrab";
pub const LIMITADOR: &str = "limitador";
pub const LIMITADOR_IN_REDIS: &str = "limitador_redis";
pub const RATELIMIT: &str = "envoyproxy_ratelimit";
pub const NGINX: &str = "nginx";
pub const ENVOY: &str = "envoy";

/// The transports of the daemon, by the number of their port.
pub const RESP: usize = 0;
pub const HTTP: usize = 1;
pub const GRPC: usize = 2;

const POLICY: &str = include_str!("conf/policy.yaml");
const LEASED_POLICY: &str = include_str!("conf/leased.yaml");

/// The servers that run, and those that do not.
pub struct Fleet {
    members: BTreeMap<&'static str, Member>,
    /// The Redis servers behind the limiters, and one that is measured itself.
    stores: BTreeMap<&'static str, RedisServer>,
    /// The missing servers, with the reasons.
    pub left_out: Vec<(&'static str, String)>,
}

impl Fleet {
    /// Starts all servers that are available; `quick` skips those that have to be built first.
    pub fn start(quick: bool) -> Result<Self, String> {
        let mut fleet =
            Self { members: BTreeMap::new(), stores: BTreeMap::new(), left_out: Vec::new() };
        let daemon = program("TIDEGATE_PROGRAM", "tidegate").ok_or(
            "the daemon is missing: TIDEGATE_PROGRAM names it, as `cargo xtask bench server` does",
        )?;
        for name in [REDIS, OURS_IN_REDIS, OURS_LEASED] {
            fleet.stores.insert(name, RedisServer::start());
        }
        for (name, threads, policy) in [
            (OURS, 2, POLICY),
            (OURS_ALONE, 1, POLICY),
            (OURS_IN_REDIS, 2, POLICY),
            (OURS_LEASED, 2, LEASED_POLICY),
            (OURS_UNLEASED, 2, LEASED_POLICY),
        ] {
            let store = fleet.store(name).map_or_else(|| "memory".to_owned(), RedisServer::url);
            fleet.members.insert(name, ours(&daemon, threads, &store, policy)?);
        }
        fleet.floors()?;
        fleet.add(NGINX, "TIDEGATE_NGINX", "nginx", proxies::nginx);
        if quick {
            let why = "it has to be built first, which a smoke run does not";
            let peers = [THROTTLECRAB, LIMITADOR, LIMITADOR_IN_REDIS, RATELIMIT, ENVOY];
            fleet.left_out.extend(peers.map(|name| (name, why.to_owned())));
            return Ok(fleet);
        }
        fleet.add(THROTTLECRAB, "TIDEGATE_THROTTLECRAB", "throttlecrab-server", throttlecrab);
        fleet.add(LIMITADOR, "TIDEGATE_LIMITADOR", "limitador-server", |program| {
            limitador(program, &["memory", "-c", "2000000"])
        });
        fleet.behind_redis(LIMITADOR_IN_REDIS, "TIDEGATE_LIMITADOR", "limitador-server", {
            |program, redis| limitador(program, &["redis", &redis.url()])
        });
        fleet.behind_redis(RATELIMIT, "TIDEGATE_ENVOY_RATELIMIT", "ratelimit", ratelimit);
        let services = [RLS_FLOOR, LIMITADOR, OURS].map(|name| (name, fleet.rls(name)));
        let upstream = fleet.get(NGINX).map(|nginx| nginx.port(0));
        fleet.add(ENVOY, "TIDEGATE_ENVOY", "envoy", |program| {
            proxies::envoy(program, upstream.ok_or("nginx, its upstream, is missing")?, &services)
        });
        Ok(fleet)
    }

    pub fn get(&self, name: &str) -> Option<&Member> {
        self.members.get(name)
    }

    /// The Redis that is measured itself, or that holds a server's state.
    pub fn store(&self, name: &str) -> Option<&RedisServer> {
        self.stores.get(name)
    }

    /// The port of a rate limit service.
    fn rls(&self, name: &str) -> Option<u16> {
        let number = match name {
            OURS => GRPC,
            LIMITADOR => 1,
            _ => 0,
        };
        self.get(name).map(|member| member.port(number))
    }

    fn floors(&mut self) -> Result<(), String> {
        let this = env::current_exe().map_err(|error| error.to_string())?;
        let recipe = Recipe::new(&this, 1);
        let command = format!("floor-resp {}", recipe.ports[0]);
        self.members.insert(RESP_FLOOR, recipe.with(&command).start()?);
        for (name, threads) in [(RLS_FLOOR, 2), (RLS_FLOOR_ALONE, 1)] {
            if cfg!(feature = "tonic") {
                let recipe = Recipe::new(&this, 1);
                let command = format!("floor-rls {} {threads}", recipe.ports[0]);
                self.members.insert(name, recipe.with(&command).start()?);
            } else {
                self.left_out.push((name, "this was built without tonic".to_owned()));
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        name: &'static str,
        variable: &str,
        file: &str,
        start: impl FnOnce(&Path) -> Result<Member, String>,
    ) {
        let missing = || format!("{file} is not on the path, and {variable} does not name it");
        match program(variable, file).ok_or_else(missing).and_then(|program| start(&program)) {
            Ok(member) => drop(self.members.insert(name, member)),
            Err(why) => self.left_out.push((name, why)),
        }
    }

    fn behind_redis(
        &mut self,
        name: &'static str,
        variable: &str,
        file: &str,
        start: impl FnOnce(&Path, &RedisServer) -> Result<Member, String>,
    ) {
        let redis = RedisServer::start();
        self.add(name, variable, file, |program| start(program, &redis));
        if self.members.contains_key(name) {
            self.stores.insert(name, redis);
        }
    }
}

/// The program that a variable names, or one on the path.
pub fn program(variable: &str, file: &str) -> Option<PathBuf> {
    // Made absolute, because each server runs in its own folder.
    let named = env::var_os(variable).and_then(|name| std::path::absolute(name).ok());
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut on_path = env::split_paths(&folders).map(|folder| folder.join(file));
    named.or_else(|| on_path.find(|path| path.is_file()))
}

fn ours(program: &Path, threads: usize, store: &str, policy: &str) -> Result<Member, String> {
    let mut recipe = Recipe::new(program, 3);
    // All servers of the run wait for a Redis that shares two cores with its clients.
    recipe.variables.push(("TIDEGATE__STORE__DEADLINE".into(), "1s".into()));
    let policy = recipe.file("policy.yaml", policy);
    let [resp, http, grpc] = [RESP, HTTP, GRPC].map(|transport| recipe.ports[transport]);
    let command = format!(
        "serve --config {policy} --threads {threads} --store {store} --admin off \
         --resp 127.0.0.1:{resp} --http 127.0.0.1:{http} --grpc 127.0.0.1:{grpc}"
    );
    recipe.with(&command).start()
}

fn throttlecrab(program: &Path) -> Result<Member, String> {
    let recipe = Recipe::new(program, 2);
    let command = format!(
        "--redis --redis-host 127.0.0.1 --redis-port {} --http --http-host 127.0.0.1 \
         --http-port {} --log-level warn",
        recipe.ports[0], recipe.ports[1]
    );
    recipe.with(&command).start()
}

fn limitador(program: &Path, storage: &[&str]) -> Result<Member, String> {
    let mut recipe = Recipe::new(program, 2);
    let limits = recipe.file("limits.yaml", include_str!("conf/limits.yaml"));
    let command = format!(
        "-B 127.0.0.1 -P {} -b 127.0.0.1 -p {} {limits} {}",
        recipe.ports[0],
        recipe.ports[1],
        storage.join(" ")
    );
    recipe.variables.push(("RUST_LOG".into(), "error".into()));
    recipe.with(&command).start()
}

fn ratelimit(program: &Path, redis: &RedisServer) -> Result<Member, String> {
    let mut recipe = Recipe::new(program, 3);
    recipe.file("runtime/bench/config/bench.yaml", include_str!("conf/ratelimit.yaml"));
    let root = recipe.folder.path().join("runtime").display().to_string();
    let [grpc, http, debug] = [0, 1, 2].map(|number| recipe.ports[number].to_string());
    let address = redis.address();
    let variables = [
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", &grpc),
        ("HOST", "127.0.0.1"),
        ("PORT", &http),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", &debug),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &address),
        ("RUNTIME_ROOT", &root),
        ("RUNTIME_SUBDIRECTORY", "bench"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("USE_STATSD", "false"),
        ("DISABLE_STATS", "true"),
        ("LOG_LEVEL", "error"),
    ];
    recipe.variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    recipe.start()
}
