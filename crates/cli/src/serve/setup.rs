//! Builds the service and the server from the settings.

use std::fs;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use tidegate::Clock;
use tidegate::policy::Switch;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::SharedOptions;
use tidegate::store::{Nodes, OnStoreFailure};
use tidegate_server::{
    Address, Answers, Body, EnvoyHeaders, Format, KeyValues, Level, Listen, Log, ProxyHeaders,
    RateLimitService, Settings, TlsFiles,
};

use super::gateway;
use crate::secret;
use crate::settings::{Chosen, Listener};

/// The format of the log.
pub(super) fn log_format(chosen: &Chosen) -> Format {
    let is_json = chosen.text("log.format").is_some_and(|format| format == "json");
    if is_json { Format::Json } else { Format::Text }
}

/// The log of the daemon.
pub(super) fn log(chosen: &Chosen) -> Log {
    let level = chosen.text("log.level").and_then(|name| Level::named(&name));
    Log::install(level.unwrap_or(Level::Info), log_format(chosen))
}

/// The service, with a memory store or the store of `store.url`.
pub(super) fn service(chosen: &Chosen) -> Result<RateLimitService, String> {
    let url = chosen.text("store.url").unwrap_or_default();
    if url == "memory" {
        if chosen.text("store.per_second_url").is_some() {
            return Err("store.per_second_url needs a Redis in store.url".into());
        }
        let bytes = chosen.number("store.memory").unwrap_or(MemoryStore::DEFAULT_BYTES);
        let service = RateLimitService::in_memory(bytes, Clock::default());
        return service.map_err(|error| format!("cannot reserve memory: {error}"));
    }
    let wrong = |error: tidegate::store::StoreError| format!("store.url: {error}");
    let mut config = RedisConfig::new(&url).map_err(wrong)?;
    if let Some(url) = chosen.text("store.per_second_url") {
        config =
            config.per_second(&url).map_err(|error| format!("store.per_second_url: {error}"))?;
    }
    if let Some(deadline) = chosen.span("store.deadline") {
        config = config.deadline(deadline);
    }
    if let Some(timeout) = chosen.span("store.connect_timeout") {
        config = config.connect_timeout(timeout);
    }
    if let Some(namespace) = chosen.text("store.namespace") {
        config = config.namespace(namespace);
    }
    if chosen.flag("store.hash_keys") {
        config = config.hash_keys();
    }
    if let Some(most) = count(chosen, "store.max_in_flight") {
        config = config.max_in_flight(most);
    }
    if let Some(most) = count(chosen, "store.pipeline") {
        config = config.pipeline(most);
    }
    if let Some(interval) = chosen.span("store.register_every") {
        config = config.register_every(interval);
    }
    if let Some(name) = chosen.text("node_name").filter(|name| !name.is_empty()).or_else(host_name)
    {
        config = config.node_name(name);
    }
    if !chosen.flag("store.wait_at_start") {
        config = config.start_without_server();
    }
    if let Some(file) = chosen.text("store.tls.authority") {
        config = config.tls_authority(contents("store.tls.authority", &file)?);
    }
    let pair = chosen.text("store.tls.certificate").zip(chosen.text("store.tls.key"));
    if let Some((certificate, key)) = pair {
        let certificate = contents("store.tls.certificate", &certificate)?;
        config = config.tls_certificate(certificate, contents("store.tls.key", &key)?);
    }
    RateLimitService::connect_with(config, options(chosen)).map_err(wrong)
}

/// The host name, if the system has one.
fn host_name() -> Option<String> {
    let known = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let name = known.into_iter().find_map(|file| fs::read_to_string(file).ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The options of the layers in front of Redis.
fn options(chosen: &Chosen) -> SharedOptions {
    let nodes = chosen.number("nodes").and_then(|nodes| u32::try_from(nodes).ok());
    let word = chosen.text("store.on_failure").unwrap_or_default();
    let otherwise = OnStoreFailure::ALL.into_iter().find(|mode| mode.as_str() == word);
    let nodes = nodes.and_then(NonZeroU32::new).map_or_else(Nodes::auto, Nodes::fixed);
    SharedOptions::default().nodes(nodes).on_store_failure(otherwise.unwrap_or_default())
}

/// Applies settings that overrule the policy.
pub(super) fn govern(chosen: &Chosen, service: &RateLimitService) -> Result<(), String> {
    let secret = chosen.text("policy.enforce_secret_file");
    service.set_enforce_secret(secret::enforce_secret(secret.as_deref().map(Path::new))?);
    service.count_near_from(chosen.number("policy.near_limit_percent").unwrap_or(80));
    if chosen.flag("policy.shadow") {
        service.switch_off(&Switch::All).map_err(|error| format!("policy.shadow: {error}"))?;
    }
    Ok(())
}

/// The settings of the server.
pub(super) fn settings(chosen: &Chosen) -> Result<Settings, String> {
    let defaults = Settings::default();
    let secret = |path: &str| {
        chosen.text(path).map(|file| secret::first_line(path, Path::new(&file))).transpose()
    };
    let threads = count(chosen, "threads").and_then(NonZeroUsize::new);
    let settings = Settings {
        http: listen(chosen, "http"),
        grpc: listen(chosen, "grpc"),
        resp: listen(chosen, "resp"),
        admin: listen(chosen, "admin"),
        metrics: listen(chosen, "metrics"),
        proxy: listen(chosen, "gateway"),
        gateway: gateway::settings(chosen)?,
        password: secret("listen.resp.password_file")?,
        allow_unauthenticated: chosen.flag("listen.resp.allow_unauthenticated"),
        token: secret("listen.admin.token_file")?,
        hosts: chosen.list("listen.admin.hosts"),
        key_values: match chosen.text("listen.admin.key_values").as_deref() {
            Some("short") => KeyValues::Short,
            Some("hash") => KeyValues::Hash,
            _ => KeyValues::Plain,
        },
        http_token: secret("listen.http.token_file")?,
        envoy_metrics: chosen.text("compat").is_some_and(|mode| mode == "envoy"),
        answers: answers(chosen),
        threads: threads.unwrap_or(defaults.threads),
        max_connections: count(chosen, "limits.max_connections")
            .unwrap_or(defaults.max_connections),
        idle_after: chosen.span("limits.idle_after").unwrap_or(defaults.idle_after),
        stuck_after: chosen.span("limits.stuck_after").unwrap_or(defaults.stuck_after),
        max_age: chosen.span("listen.grpc.max_connection_age").unwrap_or(defaults.max_age),
        max_age_grace: chosen
            .span("listen.grpc.max_connection_age_grace")
            .unwrap_or(defaults.max_age_grace),
        drain: chosen.span("limits.drain").unwrap_or(defaults.drain),
    };
    let Settings { http, grpc, resp, admin, proxy, gateway, .. } = &settings;
    if proxy.is_some() && gateway.is_none() {
        return Err(
            "listen.gateway.address: the gateway needs a service to forward requests to; set \
                    --upstream, gateway.upstream or gateway.upstreams, for example --upstream http://127.0.0.1:9000"
                .into(),
        );
    }
    if [http, grpc, resp, admin, proxy].into_iter().all(Option::is_none) {
        return Err(
            "all listeners are off: turn one on, for example with --http 127.0.0.1:8080".into()
        );
    }
    settings.check().map_err(|error| error.to_string())?;
    Ok(settings)
}

fn answers(chosen: &Chosen) -> Answers {
    let text = |path: &str| chosen.text(path).unwrap_or_default();
    let proxy_headers = if chosen.flag("response.ratelimit_headers") {
        ProxyHeaders::Envoy(EnvoyHeaders {
            limit: text("response.limit_header"),
            remaining: text("response.remaining_header"),
            reset: text("response.reset_header"),
        })
    } else if text("compat") == "envoy" {
        ProxyHeaders::None
    } else {
        ProxyHeaders::Standard
    };
    Answers {
        x_rate_limit: chosen.flag("response.x_ratelimit_headers"),
        body: chosen.origin("response.body").map(|_| match &*text("response.body") {
            "json" => Body::Json,
            "empty" => Body::Empty,
            _ => Body::Problem,
        }),
        proxy_headers,
        dynamic_metadata: chosen.flag("response.dynamic_metadata"),
    }
}

fn listen(chosen: &Chosen, listener: &str) -> Option<Listen> {
    let address = match chosen.listener(&format!("listen.{listener}.address")) {
        Listener::Off => return None,
        Listener::Tcp(address) => Address::Tcp(address),
        Listener::Unix(path) => Address::Unix(path),
    };
    // The metrics listener needs no credentials.
    if listener == "metrics" {
        return Some(Listen { address, tls: None });
    }
    let file =
        |what: &str| chosen.text(&format!("listen.{listener}.tls.{what}")).map(PathBuf::from);
    let tls = file("certificate").zip(file("key")).map(|(certificate, key)| TlsFiles {
        certificate,
        key,
        client_authority: file("client_ca"),
        client_names: chosen.list(&format!("listen.{listener}.tls.client_names")),
    });
    Some(Listen { address, tls })
}

pub(super) fn count(chosen: &Chosen, path: &str) -> Option<usize> {
    usize::try_from(chosen.number(path)?).ok()
}

fn contents(setting: &str, file: &str) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| secret::unreadable(setting, Path::new(file), &error))
}
