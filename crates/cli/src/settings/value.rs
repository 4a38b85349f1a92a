//! Types of settings, and parsing their values.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidegate::policy::nearest;

/// The type of a setting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number, with minimum and maximum.
    Number(u64, u64),
    /// `auto`, or a whole number, with minimum and maximum.
    AutoOr(u64, u64),
    /// A duration such as `250ms`, with minimum and maximum.
    Span(Duration, Duration),
    /// A size such as `64MiB`, with minimum and maximum.
    Bytes(u64, u64),
    /// Text, with the maximum number of bytes.
    Text(usize),
    /// A file.
    Path,
    /// Several texts.
    List,
    /// An address, a socket's path, or `off`.
    Listener,
    /// `memory` or a URL, which may hold a password.
    Store,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Flag(bool),
    Number(u64),
    Span(Duration),
    Text(String),
    List(Vec<String>),
    Listener(Listener),
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Off,
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Maximum number of list items, and of bytes of a text.
const MAX_LIST: usize = 1_000;
const MAX_TEXT: usize = 4_096;

impl Kind {
    /// Parses the text, or returns what was expected, what was found, and the nearest valid value.
    pub(crate) fn read(self, text: &str) -> Result<Value, String> {
        if text.len() > MAX_TEXT && !matches!(self, Self::List) {
            return Err(format!("at most {MAX_TEXT} bytes, found {}", text.len()));
        }
        let expected = || format!("{self}, found {:?}{}", self.redacted(text), self.advice(text));
        match self {
            Self::Flag => match text {
                "true" | "yes" | "on" | "1" => Ok(Value::Flag(true)),
                "false" | "no" | "off" | "0" => Ok(Value::Flag(false)),
                _ => Err(expected()),
            },
            Self::AutoOr(..) if text.eq_ignore_ascii_case("auto") => Ok(Value::Text("auto".into())),
            Self::Number(least, most) | Self::AutoOr(least, most) => {
                let number = text.parse().ok().filter(|it| (least..=most).contains(it));
                number.map(Value::Number).ok_or_else(expected)
            }
            Self::Bytes(least, most) => {
                let number = bytes(text).filter(|it| (least..=most).contains(it));
                number.map(Value::Number).ok_or_else(expected)
            }
            Self::Span(least, most) => {
                let time = span(text).filter(|it| (least..=most).contains(it));
                time.map(Value::Span).ok_or_else(expected)
            }
            Self::Text(most) if text.len() > most => Err(expected()),
            Self::Path if text.is_empty() => Err(expected()),
            Self::Text(_) | Self::Path => Ok(Value::Text(text.to_owned())),
            Self::List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Self::list(items.map(ToOwned::to_owned).collect())
            }
            Self::Listener => listener(text).map(Value::Listener).ok_or_else(expected),
            Self::Store if text == "memory" || text.contains("://") => {
                Ok(Value::Text(text.to_owned()))
            }
            Self::Store => Err(expected()),
            Self::Choice(words) => {
                let word = words.iter().find(|word| word.eq_ignore_ascii_case(text));
                word.map(|word| Value::Text((*word).to_owned())).ok_or_else(expected)
            }
        }
    }

    /// The text without passwords, for error messages.
    fn redacted(self, text: &str) -> String {
        match self {
            Self::Store => without_password(text),
            _ => text.to_owned(),
        }
    }

    /// `; did you mean …?`, if one value is close to the text.
    fn advice(self, text: &str) -> String {
        let meant = match self {
            Self::Choice(words) => nearest(text, words).map(ToOwned::to_owned),
            Self::Listener => address_meant(text),
            _ => None,
        };
        meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"))
    }

    /// Parses several texts as a list.
    pub(crate) fn read_list(self, texts: Vec<String>) -> Result<Value, String> {
        match self {
            Self::List => Self::list(texts),
            other => Err(format!("{other}, not a list")),
        }
    }

    fn list(texts: Vec<String>) -> Result<Value, String> {
        if texts.len() > MAX_LIST || texts.iter().any(|text| text.len() > MAX_TEXT) {
            return Err(format!("at most {MAX_LIST} texts of at most {MAX_TEXT} bytes"));
        }
        Ok(Value::List(texts))
    }
}

/// The expected value, for error messages and the reference.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("true or false"),
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::AutoOr(least, most) => write!(f, "auto, or a number from {least} to {most}"),
            Self::Span(least, most) => {
                write!(f, "a time such as 250ms or 5m, from {} to {}", time(*least), time(*most))
            }
            Self::Bytes(least, most) => {
                write!(f, "a size such as 64MiB, from {} to {}", size(*least), size(*most))
            }
            Self::Text(most) => write!(f, "a text of at most {most} bytes"),
            Self::Path => f.write_str("a file name"),
            Self::List => f.write_str("a list; in the environment, separated by commas"),
            Self::Listener => {
                f.write_str("an address with a port such as 127.0.0.1:8080, unix:PATH, or off")
            }
            Self::Store => f.write_str(
                "memory, redis://HOST:PORT, unix:///PATH, redis+sentinel://HOSTS/NAME or redis+cluster://HOSTS",
            ),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
        }
    }
}

impl Value {
    /// The value as YAML.
    pub(crate) fn in_yaml(&self, kind: Kind) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) if matches!(kind, Kind::Bytes(..)) => size(*number),
            Self::Number(number) => number.to_string(),
            Self::Span(span) => time(*span),
            Self::Text(text) if matches!(kind, Kind::Store) => quoted(&without_password(text)),
            Self::Text(text) if matches!(kind, Kind::Choice(_)) => quoted(text),
            Self::Text(text) => quoted(text),
            Self::List(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("[{}]", texts.join(", "))
            }
            Self::Listener(Listener::Off) => "\"off\"".into(),
            Self::Listener(Listener::Tcp(address)) => quoted(&address.to_string()),
            Self::Listener(Listener::Unix(path)) => quoted(&format!("unix:{}", path.display())),
        }
    }
}

/// The URL with its password replaced by `redacted`.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return match url.rsplit_once('@') {
            Some((_, place)) => format!("redacted@{place}"),
            None => url.to_owned(),
        };
    };
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest),
    };
    let place = match place.split_once("pass=") {
        Some((before, after)) => {
            let after = after.split_once('&').map_or(String::new(), |(_, rest)| format!("&{rest}"));
            format!("{before}pass=redacted{after}")
        }
        None => place.to_owned(),
    };
    match user {
        Some(user) => {
            let name = user.split_once(':').map_or(user, |(name, _)| name);
            format!("{scheme}://{name}:redacted@{place}")
        }
        None => format!("{scheme}://{place}"),
    }
}

fn listener(text: &str) -> Option<Listener> {
    if text == "off" {
        return Some(Listener::Off);
    }
    let path = text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text));
    if let Some(path) = path {
        return (!path.is_empty()).then(|| Listener::Unix(path.into()));
    }
    text.parse().ok().map(Listener::Tcp)
}

/// The address that a port alone, or `localhost` with a port, probably stands for.
fn address_meant(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port: u16 = port.parse().ok()?;
    match host {
        "localhost" => Some(format!("127.0.0.1:{port}")),
        "" | "*" => Some(format!("127.0.0.1:{port} (this machine) or 0.0.0.0:{port} (all)")),
        _ => None,
    }
}

const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

/// `64MiB`, or a number of bytes.
fn bytes(text: &str) -> Option<u64> {
    let (unit, size) = SIZES.iter().find(|(unit, _)| text.ends_with(unit))?;
    text[..text.len() - unit.len()].trim_end().parse::<u64>().ok()?.checked_mul(*size)
}

/// The shortest text that [`bytes`] parses to the same number.
fn size(number: u64) -> String {
    let fits = |(_, size): &&(&str, u64)| number.is_multiple_of(*size) && number >= *size;
    let (unit, size) = SIZES.iter().find(fits).unwrap_or(&("", 1));
    format!("{}{unit}", number / size)
}

const TIMES: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
];

/// `250ms`, `5m`, or several units as in Go's `1h30m`. A bare `0` is zero.
fn span(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut micros) = (text, 0_u64);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let (_, length) = TIMES.iter().find(|(name, _)| *name == unit)?;
        micros = micros.checked_add(part(number, *length)?)?;
        rest = after;
    }
    Some(Duration::from_micros(micros))
}

/// `number` (perhaps with a point in it) times `length`, without floats.
fn part(number: &str, length: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut micros = whole.parse::<u64>().ok()?.checked_mul(length)?;
    if !fraction.is_empty() {
        let scale = 10_u64.pow(fraction.len() as u32);
        let rest = u128::from(fraction.parse::<u64>().ok()?) * u128::from(length);
        micros = micros.checked_add(u64::try_from(rest / u128::from(scale)).ok()?)?;
    }
    Some(micros)
}

/// The shortest text that [`span`] parses to the same duration.
fn time(span: Duration) -> String {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    if micros == 0 {
        return "0".into();
    }
    let units = [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)];
    let unit = units.iter().find(|(_, length)| micros.is_multiple_of(*length));
    let (unit, length) = unit.unwrap_or(&("us", 1));
    format!("{}{unit}", micros / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_go_writes_them() {
        for (text, micros) in [
            ("250ms", 250_000),
            ("5m", 300_000_000),
            ("1h30m", 5_400_000_000),
            ("1.5s", 1_500_000),
            ("150us", 150),
            ("0", 0),
            ("2min", 120_000_000),
        ] {
            assert_eq!(span(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "5", "s", "1.s.", "-1s", "5 m", "1d", "99999999999999h"] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn printed_values_are_read_as_the_same() {
        for text in ["250ms", "5m", "24h", "90s", "150us", "0"] {
            let read = span(text).unwrap();
            assert_eq!(span(&time(read)), Some(read), "{text}");
        }
        for number in [1, 1_000, 1 << 10, 3 << 20, (1 << 30) + 1, 1 << 40] {
            assert_eq!(bytes(&size(number)), Some(number));
        }
    }

    #[test]
    fn no_password_is_printed() {
        for (url, shown) in [
            ("memory", "memory"),
            ("redis://h:6379/1", "redis://h:6379/1"),
            ("redis://bob:s3@cret@h:1", "redis://bob:redacted@h:1"),
            ("redis://:s3cret@h", "redis://:redacted@h"),
            ("unix:///r.sock?db=1&pass=s3cret&x=1", "unix:///r.sock?db=1&pass=redacted&x=1"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn listeners_are_addresses_sockets_or_off() {
        assert_eq!(listener("off"), Some(Listener::Off));
        assert_eq!(listener("unix:a.sock"), Some(Listener::Unix("a.sock".into())));
        assert_eq!(listener("/run/a.sock"), Some(Listener::Unix("/run/a.sock".into())));
        assert!(matches!(listener("[::1]:80"), Some(Listener::Tcp(_))));
        assert_eq!(listener("localhost"), None);
        assert_eq!(listener("unix:"), None);
    }

    /// Listeners are IP addresses, so that DNS does not decide where the daemon listens.
    #[test]
    fn a_refused_value_is_repeated_with_the_nearest_one() {
        let expected = "an address with a port such as 127.0.0.1:8080, unix:PATH, or off, found ";
        for (text, found) in [
            ("localhost:8080", "\"localhost:8080\"; did you mean 127.0.0.1:8080?"),
            (
                ":8080",
                "\":8080\"; did you mean 127.0.0.1:8080 (this machine) or 0.0.0.0:8080 (all)?",
            ),
            ("8080", "\"8080\"; did you mean 127.0.0.1:8080 (this machine) or 0.0.0.0:8080 (all)?"),
            ("example.org:80", "\"example.org:80\""),
        ] {
            assert_eq!(Kind::Listener.read(text), Err(format!("{expected}{found}")));
        }
        assert_eq!(
            Kind::Choice(&["text", "json"]).read("jsn"),
            Err("one of text, json, found \"jsn\"; did you mean json?".into())
        );
        let wrong = Kind::Store.read("bob:s3cret@h").unwrap_err();
        assert!(!wrong.contains("s3cret"), "{wrong}");
    }
}
