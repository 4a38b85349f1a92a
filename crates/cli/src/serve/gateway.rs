//! Reads the settings of the gateway.

mod edge;

use std::path::PathBuf;
use std::time::Duration;

use tidegate_server::{Gateway, HeaderNames, HealthCheck, Route, Scheme, Upstream};

use super::setup::count;
use crate::settings::{Chosen, Value};

/// The most upstreams, and routes of all upstreams together.
const MAX_UPSTREAMS: usize = 100;
const MAX_ROUTES: usize = 1_000;

/// The name of the upstream of `gateway.upstream`.
const DEFAULT: &str = "default";

/// The settings of the gateway; `None` without an upstream.
pub(super) fn settings(chosen: &Chosen) -> Result<Option<Gateway>, String> {
    let (mut upstreams, mut routes) = (Vec::new(), Vec::new());
    if let Some(url) = chosen.text("gateway.upstream") {
        let upstream: Upstream =
            url.parse().map_err(|expected| format!("gateway.upstream: expected {expected}"))?;
        routes.push((Route::all(0), "gateway.upstream".to_owned()));
        upstreams.push(with_defaults(chosen, upstream));
    }
    let is_only = upstreams.is_empty() && chosen.upstreams().count() == 1;
    for name in chosen.upstreams() {
        let number = upstreams.len();
        if name == DEFAULT && number > 0 {
            return Err(format!(
                "{}: gateway.upstream (--upstream) is the upstream {DEFAULT}; set only one of both",
                chosen.place_of_upstream(name, "urls")
            ));
        }
        upstreams.push(upstream(chosen, name)?);
        let place = chosen.place_of_upstream(name, "routes");
        let texts = list(chosen, name, "routes");
        if texts.is_empty() {
            if !is_only {
                return Err(format!(
                    "{place}: an upstream beside others needs routes, such as [/{name}] or [/]"
                ));
            }
            routes.push((Route::all(number), place.clone()));
        }
        for text in texts {
            let route = Route::parse(&text, number);
            let route = route
                .map_err(|expected| format!("{place}: expected {expected}, found {text:?}"))?;
            if let Some((_, other)) = routes.iter().find(|(other, _)| other.is_same(&route)) {
                return Err(format!("{place}: the route {route} is that of {other} already"));
            }
            routes.push((route, place.clone()));
        }
    }
    if upstreams.is_empty() {
        return Ok(None);
    }
    if upstreams.len() > MAX_UPSTREAMS || routes.len() > MAX_ROUTES {
        return Err(format!(
            "gateway.upstreams: at most {MAX_UPSTREAMS} upstreams with {MAX_ROUTES} routes, found {} \
             with {}",
            upstreams.len(),
            routes.len()
        ));
    }
    Ok(Some(Gateway {
        upstreams,
        routes: routes.into_iter().map(|(route, _)| route).collect(),
        domain: chosen.text("gateway.domain"),
        trusted: edge::peers(chosen, "gateway.trusted_peers")?,
        drop_headers: HeaderNames::new(&chosen.list("gateway.drop_headers"))
            .map_err(|expected| format!("gateway.drop_headers: expected {expected}"))?,
        max_body: chosen.number("gateway.max_body").filter(|most| *most > 0),
        edge: edge::edge(chosen)?,
    }))
}

fn with_defaults(chosen: &Chosen, upstream: Upstream) -> Upstream {
    let span = |path: &str, other| chosen.span(path).unwrap_or(other);
    let mut tls = upstream.tls;
    tls.authority = chosen.text("gateway.tls.authority").map(PathBuf::from);
    Upstream {
        max_connections: count(chosen, "gateway.max_connections")
            .unwrap_or(upstream.max_connections),
        connect_timeout: span("gateway.connect_timeout", upstream.connect_timeout),
        head_timeout: span("gateway.head_timeout", upstream.head_timeout),
        idle_timeout: span("gateway.idle_timeout", upstream.idle_timeout),
        tls,
        ..upstream
    }
}

fn upstream(chosen: &Chosen, name: &str) -> Result<Upstream, String> {
    let place = |rest: &str| chosen.place_of_upstream(name, rest);
    let upstream = Upstream::new(name, &list(chosen, name, "urls"))
        .map_err(|expected| format!("{}: expected {expected}", place("urls")))?;
    let upstream = with_defaults(chosen, upstream);
    let span = |rest: &str| match chosen.of_upstream(name, rest) {
        Some(Value::Span(span)) => Some(span),
        _ => None,
    };
    let text = |rest: &str| match chosen.of_upstream(name, rest) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    };
    let number = |rest: &str| match chosen.of_upstream(name, rest) {
        Some(Value::Number(number)) => usize::try_from(number).ok(),
        _ => None,
    };
    let mut tls = upstream.tls;
    tls.authority = text("tls.authority").map(PathBuf::from).or(tls.authority);
    tls.server_name = text("tls.server_name");
    tls.http2 = !matches!(chosen.of_upstream(name, "tls.http2"), Some(Value::Flag(false)));
    for rest in ["tls.authority", "tls.server_name"] {
        if upstream.scheme != Scheme::Https && text(rest).is_some() {
            return Err(format!("{}: only https:// URLs have certificates", place(rest)));
        }
    }
    let path = text("health.path");
    if let Some(path) = path.as_ref().filter(|path| !is_path(path)) {
        let place = place("health.path");
        return Err(format!("{place}: expected a path such as /healthz, found {path:?}"));
    }
    let times = |rest: &str| number(rest).and_then(|it| u32::try_from(it).ok()).unwrap_or(1);
    let health = path.map(|path| HealthCheck {
        path,
        interval: span("health.interval").unwrap_or(Duration::from_secs(5)),
        timeout: span("health.timeout").unwrap_or(Duration::from_secs(1)),
        unhealthy_after: times("health.unhealthy_after"),
        healthy_after: times("health.healthy_after"),
    });
    Ok(Upstream {
        max_connections: number("max_connections").unwrap_or(upstream.max_connections),
        connect_timeout: span("connect_timeout").unwrap_or(upstream.connect_timeout),
        head_timeout: span("head_timeout").unwrap_or(upstream.head_timeout),
        idle_timeout: span("idle_timeout").unwrap_or(upstream.idle_timeout),
        eject_for: span("eject_for").unwrap_or(upstream.eject_for),
        tls,
        health,
        ..upstream
    })
}

fn list(chosen: &Chosen, name: &str, rest: &str) -> Vec<String> {
    match chosen.of_upstream(name, rest) {
        Some(Value::List(texts)) => texts,
        _ => Vec::new(),
    }
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Environment, Sources};

    fn read(file: &str) -> Result<Option<Gateway>, String> {
        let environment = Environment::new();
        let file = Some(("s.yaml", file));
        let sources = Sources { file, environment: &environment, flags: Vec::new() };
        settings(&Chosen::of(&sources).map_err(|wrong| wrong.why)?)
    }

    #[test]
    fn upstreams_take_the_settings_of_the_gateway_unless_they_have_their_own() {
        let file = "gateway:
  head_timeout: 3s
  upstreams:
    api: {urls: [https://a, https://b], routes: [/v1, a.example], health: {path: /h}, head_timeout: 4s}
    web: {urls: [h2c://c:1], routes: [/]}
";
        let Some(Gateway { upstreams, routes, .. }) = read(file).expect("settings") else {
            panic!("no gateway");
        };
        let [api, web] = &upstreams[..] else { panic!("{upstreams:?}") };
        assert_eq!((api.name.as_str(), api.addresses.len(), api.scheme), ("api", 2, Scheme::Https));
        assert_eq!((api.head_timeout.as_secs(), web.head_timeout.as_secs()), (4, 3));
        assert_eq!(api.health.as_ref().map(|health| health.unhealthy_after), Some(3));
        assert_eq!((web.scheme, web.health.as_ref()), (Scheme::H2c, None));
        let routes: Vec<_> = routes.iter().map(|it| (it.to_string(), it.upstream)).collect();
        let expected = [("/v1", 0), ("a.example", 0), ("/", 1)];
        assert_eq!(routes, expected.map(|(route, upstream)| (route.to_owned(), upstream)));
        assert_eq!(read("threads: 1").expect("settings").map(|it| it.upstreams), None);
        let only = read("gateway: {upstreams: {a: {urls: [http://a]}}}").expect("settings");
        assert_eq!(only.expect("a gateway").routes, [Route::all(0)]);
    }

    #[test]
    fn load_errors_name_the_place_and_the_fix() {
        for (file, expected) in [
            ("{upstream: ftp://a}", "gateway.upstream: expected a URL without a path, such as"),
            (
                "{upstreams: {a: {urls: [http://a, https://b]}}}",
                "s.yaml:1:33: gateway.upstreams.a.urls: expected URLs of one scheme",
            ),
            (
                "{upstreams: {a: {routes: [/]}}}",
                "gateway.upstreams.a.urls: expected from 1 to 64 URLs",
            ),
            (
                "{upstreams: {a: {urls: [http://a], routes: [A/x]}}}",
                "gateway.upstreams.a.routes: expected a host in small letters",
            ),
            (
                "{upstreams: {a: {urls: [http://a]}, b: {urls: [http://b], routes: [/]}}}",
                "gateway.upstreams.a.routes: an upstream beside others needs routes, such as [/a]",
            ),
            (
                "{upstreams: {a: {urls: [http://a], routes: [/x]}, b: {urls: [http://b], routes: [/x/]}}}",
                "gateway.upstreams.b.routes: the route /x is that of",
            ),
            (
                "{upstream: http://a, upstreams: {default: {urls: [http://a], routes: [/x]}}}",
                "gateway.upstream (--upstream) is the upstream default; set only one of both",
            ),
            (
                "{upstreams: {a: {urls: [http://a], tls: {server_name: b}}}}",
                "gateway.upstreams.a.tls.server_name: only https:// URLs have certificates",
            ),
            (
                "{upstream: http://a, drop_headers: [X-User, Host]}",
                "gateway.drop_headers: expected at most 64 names of headers such as X-User-Id",
            ),
            (
                "{upstream: http://a, trusted_peers: [socket]}",
                "gateway.trusted_peers: expected an address or a network such as 10.0.0.0/8, or unix",
            ),
            (
                "{upstreams: {a: {urls: [http://a], health: {path: x}}}}",
                "gateway.upstreams.a.health.path: expected a path such as /healthz, found \"x\"",
            ),
        ] {
            let wrong = read(&format!("gateway: {file}")).expect_err(file);
            assert!(wrong.contains(expected), "{wrong}");
        }
    }
}
