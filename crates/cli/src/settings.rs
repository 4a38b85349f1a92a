//! The daemon's settings, from a file, the environment and flags; later sources have precedence.
//!
//! ```text
//!   table.rs: all settings                 value.rs: their values
//!   file.rs, envoy_compat.rs ──▶ Chosen ──▶ serve.rs        print.rs: --print-config
//! ```

pub(crate) mod envoy_compat;
mod file;
mod print;
pub(crate) mod table;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use self::table::Setting;
pub(crate) use self::value::{Listener, Value};

/// The names and values of environment variables.
pub(crate) type Environment = BTreeMap<String, String>;

/// All settings that are not at their default, and their sources.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    values: HashMap<&'static str, (Value, Origin)>,
    /// The settings of upstreams, by the name of the upstream.
    upstreams: BTreeMap<String, HashMap<&'static str, (Value, Origin)>>,
    /// Warnings to log once the log is open.
    pub(crate) warnings: Vec<String>,
}

/// The source of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A settings file, at this position.
    File(String),
    /// Environment variables.
    Environment(String),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(at) => f.write_str(at),
            Self::Environment(names) => f.write_str(names),
            Self::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// Settings with mistakes.
#[derive(Debug)]
pub(crate) struct Unusable {
    /// Every mistake, one per line.
    pub(crate) why: String,
    /// The valid settings, from which the log format for the error messages is taken.
    pub(crate) chosen: Chosen,
}

/// The sources of the settings.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    /// A settings file by name and text.
    pub(crate) file: Option<(&'a str, &'a str)>,
    pub(crate) environment: &'a Environment,
    /// Flags by the path of their setting.
    pub(crate) flags: Vec<(&'static str, Vec<String>)>,
}

/// Prefix of Tidegate's environment variables.
const PREFIX: &str = "TIDEGATE__";

impl Chosen {
    /// Merges the sources, or returns all their errors.
    pub(crate) fn of(sources: &Sources<'_>) -> Result<Self, Unusable> {
        let mut chosen = Self::default();
        let mut wrong = Vec::new();
        if let Some((name, text)) = sources.file {
            file::read(name, text, &mut chosen, &mut wrong);
        }
        // `compat` decides whether envoyproxy's variables are read, so it is read first.
        let asked = |path: &str| {
            let flag = sources.flags.iter().find(|(flag, _)| *flag == path);
            let variable = table::find(path).map(Setting::variable).unwrap_or_default();
            let flag = flag.and_then(|(_, values)| values.first());
            flag.or_else(|| sources.environment.get(&variable)).cloned()
        };
        let ours = asked("compat").or_else(|| match chosen.values.get("compat") {
            Some((Value::Text(word), _)) => Some(word.clone()),
            _ => None,
        });
        if envoy_compat::is_meant(ours.as_deref(), sources.environment) {
            envoy_compat::read(sources.environment, &mut chosen, &mut wrong);
        }
        chosen.read_environment(sources.environment, &mut wrong);
        for (path, values) in &sources.flags {
            let Some(setting) = table::find(path) else { continue };
            let read = match &**values {
                [one] if !matches!(setting.kind, value::Kind::List) => setting.kind.read(one),
                several => setting.kind.read_list(several.to_vec()),
            };
            match read {
                Ok(value) => chosen.set(setting, value, Origin::Flag(setting.flag)),
                Err(expected) => wrong.push(format!("--{}: expected {expected}", setting.flag)),
            }
        }
        chosen.check_pairs(&mut wrong);
        if wrong.is_empty() { Ok(chosen) } else { Err(Unusable { why: wrong.join("\n"), chosen }) }
    }

    fn read_environment(&mut self, environment: &Environment, wrong: &mut Vec<String>) {
        let ours = environment.iter().filter(|(name, _)| name.starts_with(PREFIX));
        for (name, text) in ours {
            if let Some((upstream, setting)) = upstream_variable(name) {
                match setting.kind.read(text) {
                    Ok(value) => {
                        let origin = Origin::Environment(name.clone());
                        self.set_of_upstream(upstream, setting, value, origin);
                    }
                    Err(expected) => wrong.push(format!("{name}: expected {expected}")),
                }
                continue;
            }
            let Some(setting) = table::SETTINGS.iter().find(|it| it.variable() == *name) else {
                let names: Vec<String> = table::SETTINGS.iter().map(Setting::variable).collect();
                let names: Vec<&str> = names.iter().map(|name| &**name).collect();
                let advice = meant(name, &names);
                wrong.push(format!("{name}: unknown setting{advice}"));
                continue;
            };
            match setting.kind.read(text) {
                Ok(value) => self.set(setting, value, Origin::Environment(name.clone())),
                Err(expected) => wrong.push(format!("{name}: expected {expected}")),
            }
        }
    }

    /// Refuses a certificate without its key, and a key without its certificate.
    fn check_pairs(&self, wrong: &mut Vec<String>) {
        for place in
            ["listen.http", "listen.grpc", "listen.resp", "listen.admin", "listen.gateway", "store"]
        {
            let has = |what: &str| self.text(&format!("{place}.tls.{what}")).is_some();
            if has("certificate") != has("key") {
                let why = "certificate and key go together: give both or neither";
                wrong.push(format!("{place}.tls: {why}"));
            }
            let names =
                place != "store" && !self.list(&format!("{place}.tls.client_names")).is_empty();
            if names && !has("client_ca") {
                let why = "client_names are looked for in certificates that client_ca vouches for: \
                           give it too";
                wrong.push(format!("{place}.tls: {why}"));
            }
            if place != "store" && has("client_ca") && !has("certificate") {
                let why = "client_ca needs TLS: set certificate and key";
                wrong.push(format!("{place}.tls: {why}"));
            }
        }
    }

    /// Sets a value, with precedence over earlier ones.
    pub(crate) fn set(&mut self, setting: &'static Setting, value: Value, origin: Origin) {
        self.values.insert(setting.path, (value, origin));
    }

    /// Sets a value of an upstream.
    fn set_of_upstream(
        &mut self,
        upstream: String,
        setting: &'static Setting,
        value: Value,
        origin: Origin,
    ) {
        self.upstreams.entry(upstream).or_default().insert(setting.path, (value, origin));
    }

    /// The names of the upstreams.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &str> {
        self.upstreams.keys().map(String::as_str)
    }

    /// The value of an upstream's setting `rest`, or its default, if it has one.
    pub(crate) fn of_upstream(&self, upstream: &str, rest: &str) -> Option<Value> {
        let setting = table::find_of_upstream(rest)?;
        if let Some((value, _)) = self.upstreams.get(upstream)?.get(setting.path) {
            return Some(value.clone());
        }
        let setting = Some(setting).filter(|setting| !setting.default.is_empty())?;
        setting.kind.read(setting.default).ok()
    }

    /// The source and the path of an upstream's setting.
    pub(crate) fn place_of_upstream(&self, upstream: &str, rest: &str) -> String {
        let path = format!("{}{upstream}.{rest}", table::UPSTREAMS);
        let setting = table::find_of_upstream(rest);
        let values = self.upstreams.get(upstream);
        let chosen = setting.and_then(|setting| values?.get(setting.path));
        chosen.map_or(path.clone(), |(_, origin)| format!("{origin}: {path}"))
    }

    /// The source of a setting; `None` for a default.
    pub(crate) fn origin(&self, path: &str) -> Option<&Origin> {
        self.values.get(path).map(|(_, origin)| origin)
    }

    fn value(&self, path: &str) -> Option<Value> {
        if let Some((value, _)) = self.values.get(path) {
            return Some(value.clone());
        }
        let setting = table::find(path);
        debug_assert!(setting.is_some(), "no setting {path}");
        let setting = setting.filter(|setting| !setting.default.is_empty())?;
        setting.kind.read(setting.default).ok()
    }

    pub(crate) fn flag(&self, path: &str) -> bool {
        matches!(self.value(path), Some(Value::Flag(true)))
    }

    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        match self.value(path)? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn span(&self, path: &str) -> Option<Duration> {
        match self.value(path)? {
            Value::Span(span) => Some(span),
            _ => None,
        }
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        match self.value(path)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        match self.value(path) {
            Some(Value::List(texts)) => texts,
            _ => Vec::new(),
        }
    }

    pub(crate) fn listener(&self, path: &str) -> Listener {
        match self.value(path) {
            Some(Value::Listener(listener)) => listener,
            _ => Listener::Off,
        }
    }
}

/// The upstream and the setting of a variable such as `TIDEGATE__GATEWAY__UPSTREAMS__API__URLS`.
fn upstream_variable(variable: &str) -> Option<(String, &'static Setting)> {
    let (_, rest) = variable.split_once("TIDEGATE__GATEWAY__UPSTREAMS__")?;
    let (name, rest) = rest.split_once("__")?;
    let setting = table::find_of_upstream(&rest.to_ascii_lowercase().replace("__", "."))?;
    is_name(name).then(|| (name.to_ascii_lowercase(), setting))
}

/// Whether the text is a valid name of an upstream.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_part)
}

/// `; did you mean …?`, if one of the names is close to the given one.
fn meant(name: &str, names: &[&str]) -> String {
    match tidegate::policy::nearest(name, names) {
        Some(meant) => format!("; did you mean {meant}?"),
        None => String::new(),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
