//! The environment variables of envoyproxy/ratelimit, with its defaults and parsing rules.

pub(crate) mod table;

use std::path::PathBuf;

use self::table::VARIABLES;
use super::table::find;
use super::value::{Kind, Listener};
use super::{Chosen, Environment, Origin, Value};

/// The effect of a variable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// Sets this setting.
    Sets(&'static str),
    /// Sets this setting together with other variables.
    Makes(&'static str),
    /// Has no effect; a value other than the default causes a warning with this reason.
    Unused(&'static str),
    /// These values are errors, with this reason.
    Refused(&'static [&'static str], &'static str),
}

/// Whether to read these variables: `compat` is set, or a variable that only envoyproxy/ratelimit has.
pub(super) fn is_meant(compat: Option<&str>, environment: &Environment) -> bool {
    match compat {
        Some(word) => word.eq_ignore_ascii_case("envoy"),
        None => implied_by(environment).is_some(),
    }
}

fn implied_by(environment: &Environment) -> Option<&'static str> {
    ["RUNTIME_ROOT", "REDIS_URL"].into_iter().find(|name| environment.contains_key(*name))
}

/// Reads the variables. Unsupported values go to `wrong`, ineffective ones to the warnings.
pub(super) fn read(environment: &Environment, chosen: &mut Chosen, wrong: &mut Vec<String>) {
    let mut reader = Reader { environment, chosen, wrong };
    if let Some(name) = implied_by(environment) {
        let origin = Origin::Environment(name.into());
        reader.choose("compat", Value::Text("envoy".into()), origin);
    }
    for variable in VARIABLES {
        let Some(text) = environment.get(variable.name) else { continue };
        match variable.fate {
            // An empty variable counts as not set.
            Fate::Sets(_) if text.is_empty() => {}
            Fate::Sets(path) => reader.set(path, text, variable.name),
            Fate::Makes(_) => {}
            Fate::Unused(why) => {
                if !text.is_empty() && !is_the_same(text, variable.quiet) {
                    // Without its value, which may be a secret.
                    let warning = format!("{} has no effect: {why}", variable.name);
                    reader.chosen.warnings.push(warning);
                }
            }
            Fate::Refused(values, why) => {
                if values.iter().any(|value| value.eq_ignore_ascii_case(text)) {
                    reader.wrong.push(format!("{}={text} is not supported: {why}", variable.name));
                }
            }
        }
    }
    reader.listeners();
    reader.policy();
    reader.redis();
    reader.log();
    reader.near_limit();
    reader.warn_of_incomplete_groups();
}

/// Booleans as Go parses them.
fn is_the_same(text: &str, default: &str) -> bool {
    text.eq_ignore_ascii_case(default) || truth(text).is_some_and(|it| truth(default) == Some(it))
}

fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

struct Reader<'a> {
    environment: &'a Environment,
    chosen: &'a mut Chosen,
    wrong: &'a mut Vec<String>,
}

impl Reader<'_> {
    /// The value of a variable, or its default.
    fn text(&self, name: &str) -> &str {
        let default = VARIABLES.iter().find(|it| it.name == name).map_or("", |it| it.default);
        self.environment.get(name).map_or(default, |text| text)
    }

    fn is_set(&self, name: &str) -> bool {
        self.environment.get(name).is_some_and(|text| !text.is_empty())
    }

    fn flag(&mut self, name: &str) -> bool {
        let text = self.text(name).to_owned();
        truth(&text).unwrap_or_else(|| {
            self.wrong.push(format!("{name}={text}: expected true or false"));
            false
        })
    }

    fn choose(&mut self, path: &str, value: Value, origin: Origin) {
        if let Some(setting) = find(path) {
            self.chosen.set(setting, value, origin);
        }
    }

    /// Sets a setting to the text of a variable.
    fn set(&mut self, path: &str, text: &str, name: &str) {
        let Some(setting) = find(path) else { return };
        let read = match (setting.kind, truth(text)) {
            (Kind::Flag, Some(flag)) => Ok(Value::Flag(flag)),
            (kind, _) => kind.read(text),
        };
        match read {
            Ok(value) => self.choose(path, value, Origin::Environment(name.into())),
            Err(expected) => self.wrong.push(format!("{name}: expected {expected}")),
        }
    }

    /// Warns about variables that need another one to have an effect.
    fn warn_of_incomplete_groups(&mut self) {
        for variable in VARIABLES {
            let Fate::Makes(path) = variable.fate else { continue };
            if !self.is_set(variable.name) {
                continue;
            }
            let origin = self.chosen.origin(path).map(ToString::to_string).unwrap_or_default();
            let (name, text) = (variable.name, self.text(variable.name).to_owned());
            if !origin.contains(name)
                && !is_the_same(&text, variable.quiet)
                && self.wrong.is_empty()
            {
                let warning = format!("{name} has no effect without the others that make {path}");
                self.chosen.warnings.push(warning);
            }
        }
    }

    fn listeners(&mut self) {
        self.address("listen.http.address", "HOST", "PORT");
        self.address("listen.admin.address", "DEBUG_HOST", "DEBUG_PORT");
        if self.is_set("GRPC_UDS") {
            let path = PathBuf::from(self.text("GRPC_UDS"));
            let origin = Origin::Environment("GRPC_UDS".into());
            self.choose("listen.grpc.address", Value::Listener(Listener::Unix(path)), origin);
        } else {
            self.address("listen.grpc.address", "GRPC_HOST", "GRPC_PORT");
        }
        if self.flag("GRPC_SERVER_USE_TLS") {
            for (name, path) in [
                ("GRPC_SERVER_TLS_CERT", "listen.grpc.tls.certificate"),
                ("GRPC_SERVER_TLS_KEY", "listen.grpc.tls.key"),
                ("GRPC_CLIENT_TLS_CACERT", "listen.grpc.tls.client_ca"),
                ("GRPC_CLIENT_TLS_SAN", "listen.grpc.tls.client_names"),
            ] {
                self.take(name, path, "GRPC_SERVER_USE_TLS, ");
            }
        }
        // envoyproxy/ratelimit listens there only with USE_PROMETHEUS.
        if self.flag("USE_PROMETHEUS") {
            let text = self.text("PROMETHEUS_ADDR");
            let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
            let (host, port) = (host.trim_matches(['[', ']']).to_owned(), port.to_owned());
            self.listen("listen.metrics.address", &host, &port, "USE_PROMETHEUS, PROMETHEUS_ADDR");
        }
    }

    /// Sets a setting to a variable that is not empty; `with` lists the variables it needs.
    fn take(&mut self, name: &str, path: &str, with: &str) {
        if self.is_set(name) {
            let text = self.text(name).to_owned();
            self.set(path, &text, &format!("{with}{name}"));
        }
    }

    fn address(&mut self, path: &str, host: &str, port: &str) {
        let (host_text, port_text) = (self.text(host).to_owned(), self.text(port).to_owned());
        let names: Vec<&str> = [host, port].into_iter().filter(|name| self.is_set(name)).collect();
        // envoyproxy's default address applies only if no other source sets the listener.
        if names.is_empty() && self.chosen.origin(path).is_some() {
            return;
        }
        let names = if names.is_empty() { "compat: envoy".into() } else { names.join(", ") };
        self.listen(path, &host_text, &port_text, &names);
    }

    /// An empty host is every address, as in Go.
    fn listen(&mut self, path: &str, host: &str, port: &str, names: &str) {
        let host = match host {
            "" => "0.0.0.0",
            "localhost" => "127.0.0.1",
            other => other,
        };
        let text =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        match Kind::Listener.read(&text) {
            Ok(value) => self.choose(path, value, Origin::Environment(names.into())),
            Err(expected) => self.wrong.push(format!("{names}: expected {expected}")),
        }
    }

    /// The policy folder of envoyproxy/ratelimit.
    fn policy(&mut self) {
        let is_told = self.is_set("RUNTIME_ROOT");
        if !is_told && self.chosen.origin("policy.files").is_some() {
            return;
        }
        let mut folder = PathBuf::from(self.text("RUNTIME_ROOT"));
        for name in ["RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"] {
            // As in Go, a leading slash stays within the root.
            folder.push(self.text(name).trim_start_matches('/'));
        }
        // With REDIS_URL alone, the default folder may not exist.
        if !is_told && implied_by(self.environment).is_some() && !folder.is_dir() {
            let warning = format!(
                "no policy is loaded: RUNTIME_ROOT is not set, and {} does not exist",
                folder.display()
            );
            self.chosen.warnings.push(warning);
            return;
        }
        let value = Value::List(vec![folder.display().to_string()]);
        let names =
            ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY", "RUNTIME_WATCH_ROOT"];
        let names: Vec<&str> = names.into_iter().filter(|name| self.is_set(name)).collect();
        let names = if names.is_empty() { "compat: envoy".into() } else { names.join(", ") };
        let origin = Origin::Environment(names);
        self.choose("policy.files", value, origin);
    }

    fn redis(&mut self) {
        if !self.is_set("REDIS_URL") {
            let warning = "REDIS_URL is not set: state is kept in memory";
            self.chosen.warnings.push(warning.into());
            return;
        }
        self.store("store.url", "REDIS");
        if self.flag("REDIS_PERSECOND") {
            self.store("store.per_second_url", "REDIS_PERSECOND");
        }
        if self.flag("REDIS_TLS") || self.flag("REDIS_PERSECOND_TLS") {
            for (name, path) in [
                ("REDIS_TLS_CLIENT_CERT", "store.tls.certificate"),
                ("REDIS_TLS_CLIENT_KEY", "store.tls.key"),
                ("REDIS_TLS_CACERT", "store.tls.authority"),
            ] {
                self.take(name, path, "REDIS_TLS, ");
            }
        }
        if self.is_set("REDIS_TIMEOUT") {
            for path in ["store.deadline", "store.connect_timeout"] {
                self.take("REDIS_TIMEOUT", path, "");
            }
        }
    }

    /// Builds a store URL from the variables with this prefix.
    fn store(&mut self, path: &str, prefix: &str) {
        let name = |end: &str| format!("{prefix}_{end}");
        let has_tls = self.flag(&name("TLS"));
        let servers = Servers {
            url: self.text(&name("URL")),
            kind: self.text(&name("TYPE")),
            socket: self.text(&name("SOCKET_TYPE")),
            auth: self.text(&name("AUTH")),
            sentinel_auth: self.text(&name("SENTINEL_AUTH")),
            has_tls,
        };
        let has_sentinels = servers.kind.eq_ignore_ascii_case("sentinel");
        let used: Vec<String> = ["URL", "SOCKET_TYPE", "TYPE", "AUTH", "SENTINEL_AUTH", "TLS"]
            .into_iter()
            .filter(|end| *end != "SENTINEL_AUTH" || has_sentinels)
            .map(name)
            .filter(|name| self.is_set(name))
            .collect();
        match servers.url() {
            Ok(url) => {
                let origin = Origin::Environment(used.join(", "));
                self.choose(path, Value::Text(url), origin);
            }
            Err(why) => self.wrong.push(format!("{prefix}_URL: {why}")),
        }
    }

    fn log(&mut self) {
        let level = self.text("LOG_LEVEL").to_ascii_lowercase();
        let ours = match &*level {
            "panic" | "fatal" | "error" => "error",
            "warn" | "warning" => "warn",
            "debug" | "trace" => "debug",
            _ => "info",
        };
        if self.is_set("LOG_LEVEL") {
            self.set("log.level", ours, "LOG_LEVEL");
        }
        if self.is_set("LOG_FORMAT") {
            let format = self.text("LOG_FORMAT").eq_ignore_ascii_case("json");
            self.set("log.format", if format { "json" } else { "text" }, "LOG_FORMAT");
        }
    }

    /// A ratio such as 0.8, truncated to hundredths.
    fn near_limit(&mut self) {
        if !self.is_set("NEAR_LIMIT_RATIO") {
            return;
        }
        let text = self.text("NEAR_LIMIT_RATIO").to_owned();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let digits: String = fraction.chars().chain("00".chars()).take(2).collect();
        match format!("{whole}{digits}").parse::<u64>() {
            Ok(percent @ 1..=100) => {
                let origin = Origin::Environment("NEAR_LIMIT_RATIO".into());
                self.choose("policy.near_limit_percent", Value::Number(percent), origin);
            }
            _ => self
                .wrong
                .push(format!("NEAR_LIMIT_RATIO={text}: expected a number from 0.01 to 1")),
        }
    }
}

/// The Redis variables with one prefix.
struct Servers<'a> {
    url: &'a str,
    kind: &'a str,
    socket: &'a str,
    auth: &'a str,
    sentinel_auth: &'a str,
    has_tls: bool,
}

impl Servers<'_> {
    fn url(&self) -> Result<String, String> {
        // A URL with a scheme, as other programs use in REDIS_URL.
        if self.kind.eq_ignore_ascii_case("single") && self.url.contains("://") {
            return Ok(self.url.to_owned());
        }
        let scheme = if self.has_tls { "rediss" } else { "redis" };
        let (user, password) = match self.auth.split_once(':') {
            Some((user, password)) => (user, password),
            None => ("", self.auth),
        };
        let user = if self.auth.is_empty() {
            String::new()
        } else {
            format!("{}:{}@", escaped(user), escaped(password))
        };
        // Credentials of single hosts in a list are not supported by Tidegate's URLs.
        let host = |host: &str| {
            let host = host.split_once("://").map_or(host, |(_, rest)| rest);
            host.rsplit_once('@').map_or(host, |(_, rest)| rest).trim().to_owned()
        };
        match &*self.kind.to_ascii_lowercase() {
            "single" if self.socket == "unix" => {
                let mut query = Vec::new();
                if !self.auth.is_empty() {
                    query.push(format!("pass={}", escaped(password)));
                }
                if self.auth.contains(':') {
                    query.push(format!(
                        "user={}",
                        escaped(self.auth.split(':').next().unwrap_or(""))
                    ));
                }
                let query =
                    if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
                Ok(format!("unix://{}{query}", self.url))
            }
            "single" => Ok(format!("{scheme}://{user}{}", host(self.url))),
            "cluster" => {
                let hosts: Vec<String> = self.url.split(',').map(host).collect();
                Ok(format!("{scheme}+cluster://{user}{}", hosts.join(",")))
            }
            "sentinel" => {
                let (primary, hosts) = self.url.split_once(',').ok_or(
                    "expected the name of the primary and its sentinels, as in \
                     mymaster,host:26379,host:26379",
                )?;
                let hosts: Vec<String> = hosts.split(',').map(host).collect();
                let query = self.sentinel_query();
                Ok(format!("{scheme}+sentinel://{user}{}/{primary}{query}", hosts.join(",")))
            }
            other => Err(format!("expected single, sentinel or cluster, found {other:?}")),
        }
    }

    /// The credentials of the sentinels, which are other servers than those they watch.
    fn sentinel_query(&self) -> String {
        match self.sentinel_auth.split_once(':') {
            _ if self.sentinel_auth.is_empty() => String::new(),
            Some((user, password)) => {
                format!("?sentinel_user={}&sentinel_pass={}", escaped(user), escaped(password))
            }
            None => format!("?sentinel_pass={}", escaped(self.sentinel_auth)),
        }
    }
}

/// Percent-encodes text for a URL.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
#[path = "envoy_compat_tests.rs"]
mod tests;
