//! `tidegate serve`.

use std::path::PathBuf;

use clap::Args;

/// Answer rate limit checks over HTTP, gRPC and the Redis protocol
///
/// Needs no configuration: `CL.THROTTLE`, `THROTTLE` and `POST /v1/check` can send their own limit. With a
/// policy, `TG.CHECK`, `POST /v1/check`, `/v1/auth` and gRPC use it. The policy is reloaded when its files
/// change, and on SIGHUP. SIGTERM and SIGINT shut down gracefully.
///
/// Flags have precedence over the environment (TIDEGATE__A__B), and the environment over the settings file.
/// With RUNTIME_ROOT or REDIS_URL in the environment, the variables of envoyproxy/ratelimit are read too.
#[derive(Debug, Args)]
#[command(after_help = SERVING)]
pub(crate) struct Serve {
    /// Policy files, or folders whose .yaml and .yml files are read; may be repeated
    #[arg(long, short, value_name = "FILE|DIR")]
    config: Vec<String>,

    /// Allow several files to define one domain
    #[arg(long)]
    merge: bool,

    /// HTTP listener: an address, unix:PATH or off [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,

    /// gRPC listener [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<String>,

    /// Redis protocol listener [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS")]
    resp: Option<String>,

    /// Listener for metrics, health and the admin API [default: 127.0.0.1:6070]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,

    /// Gateway listener, which forwards admitted requests to --upstream [default: off]
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<String>,

    /// Service that the gateway forwards requests to: http://, https:// or h2c://HOST:PORT (HTTP/2 without TLS, for gRPC)
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// Access log of the gateway on standard output: text, json or off [default: off]
    #[arg(long, value_name = "FORMAT")]
    access_log: Option<String>,

    /// Store: memory, or a Redis such as redis://127.0.0.1:6379 [default: memory]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// Replace envoyproxy/ratelimit: envoy or off [default: off]
    #[arg(long, value_name = "MODE")]
    compat: Option<String>,

    /// File whose first line is the password for Redis clients
    #[arg(long, value_name = "FILE")]
    password_file: Option<String>,

    /// Number of worker threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<String>,

    /// Settings file (YAML); --print-config lists all settings
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,

    /// Print the settings in force with the source of each, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
}

impl Serve {
    /// Values of the flags, by the path of their setting.
    pub(crate) fn flags(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut flags = Vec::new();
        if !self.config.is_empty() {
            flags.push(("policy.files", self.config.clone()));
        }
        if self.merge {
            flags.push(("policy.merge", vec!["true".into()]));
        }
        for (path, value) in [
            ("listen.http.address", &self.http),
            ("listen.grpc.address", &self.grpc),
            ("listen.resp.address", &self.resp),
            ("listen.admin.address", &self.admin),
            ("listen.gateway.address", &self.gateway),
            ("gateway.upstream", &self.upstream),
            ("gateway.access_log", &self.access_log),
            ("store.url", &self.store),
            ("compat", &self.compat),
            ("listen.resp.password_file", &self.password_file),
            ("threads", &self.threads),
        ] {
            flags.extend(value.iter().map(|value| (path, vec![value.clone()])));
        }
        flags
    }
}

const SERVING: &str = "\
Examples:
  tidegate serve
  redis-cli -p 6380 CL.THROTTLE user:17 15 30 60
  curl -i localhost:8080/v1/check -d '{\"key\":\"user:17\",\"rate\":\"100/60s\",\"burst\":50}'
  tidegate serve --config policy.yaml --resp 0.0.0.0:6380 --password-file secret
  redis-cli -p 6380 TG.CHECK api user bob
  tidegate serve --settings settings.yaml --print-config";

/// Limit the requests to an HTTP service: forward those that a policy admits
///
/// Short for `tidegate serve` with a gateway and the admin port, and no other listener. The `requests` rules of
/// the policy choose the limits: rates, delays, and limits of requests in progress, which are held until the
/// response body ends. Without a policy, every request is forwarded.
///
/// The gateway refuses requests that servers would read in different ways. `X-Forwarded-For`, `Forwarded` and
/// similar fields of clients are dropped, unless gateway.trusted_peers has their address.
#[derive(Debug, Args)]
#[command(after_help = FORWARDING)]
pub(crate) struct Gateway {
    /// Service that requests are forwarded to: http://, https:// or h2c://HOST:PORT (HTTP/2 without TLS, for gRPC)
    ///
    /// Several services, or several addresses of one, are settings: gateway.upstreams.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// Address that clients connect to, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: String,

    /// Policy files, or folders whose .yaml and .yml files are read; may be repeated
    #[arg(long, short, value_name = "FILE|DIR")]
    config: Vec<String>,

    /// Listener for metrics, health and the admin API [default: 127.0.0.1:6070]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,

    /// Access log on standard output: text, json or off [default: off]
    #[arg(long, value_name = "FORMAT")]
    access_log: Option<String>,

    /// Store: memory, or a Redis such as redis://127.0.0.1:6379 [default: memory]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// Settings file (YAML)
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,

    /// Print the settings in force with the source of each, and exit
    #[arg(long)]
    print_config: bool,
}

impl Gateway {
    /// The same as arguments of `serve`.
    pub(crate) fn serve(self) -> Serve {
        let off = || Some("off".into());
        Serve {
            config: self.config,
            merge: false,
            http: off(),
            grpc: off(),
            resp: off(),
            admin: self.admin,
            gateway: Some(self.listen),
            upstream: self.upstream,
            access_log: self.access_log,
            store: self.store,
            compat: None,
            password_file: None,
            threads: None,
            settings: self.settings,
            print_config: self.print_config,
        }
    }
}

const FORWARDING: &str = "\
Examples:
  tidegate gateway --upstream http://127.0.0.1:9000 --config policy.yaml
  curl -i localhost:8000/";
