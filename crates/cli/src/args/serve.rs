//! `tidegate serve`.

use std::path::PathBuf;

use clap::Args;

/// Answer rate limit checks over HTTP, gRPC and the Redis protocol
///
/// Needs no configuration: `CL.THROTTLE`, `THROTTLE` and `POST /v1/check` bring their limit with them.
/// With a policy, `TG.CHECK`, `POST /v1/check`, `/v1/auth` and gRPC ask it; the policy is read again
/// when its files change, and on SIGHUP. SIGTERM and SIGINT let connections finish first.
///
/// Flags go before TIDEGATE__A__B in the environment, which goes before the settings file. With
/// RUNTIME_ROOT or REDIS_URL in the environment, that of envoyproxy/ratelimit is read as well.
#[derive(Debug, Args)]
#[command(after_help = SERVING)]
pub(crate) struct Serve {
    /// Policy files, or folders of which every .yaml and .yml file is read; may be repeated
    #[arg(long, short, value_name = "FILE|DIR")]
    config: Vec<String>,

    /// Let several files describe one domain
    #[arg(long)]
    merge: bool,

    /// Where to speak HTTP: an address, unix:PATH or off [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,

    /// Where to speak gRPC [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<String>,

    /// Where to speak the Redis protocol [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS")]
    resp: Option<String>,

    /// Where metrics, health and administration are [default: 127.0.0.1:6070]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,

    /// Where state is kept: memory, or a Redis such as redis://127.0.0.1:6379 [default: memory]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// Take the place of envoyproxy/ratelimit (envoy), or do not (off)
    #[arg(long, value_name = "WHOM")]
    compat: Option<String>,

    /// A file whose first line is the password that Redis clients have to give
    #[arg(long, value_name = "FILE")]
    password_file: Option<String>,

    /// How many threads answer [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<String>,

    /// Everything else that can be set, as YAML: see --print-config
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,

    /// Print the settings in force, with where each comes from, and end
    #[arg(long)]
    pub(crate) print_config: bool,
}

impl Serve {
    /// What was said, by the path of its setting.
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
