use super::super::Sources;
use super::*;

fn chosen(variables: &[(&str, &str)]) -> Result<Chosen, String> {
    let environment: Environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sources = Sources { file: None, environment: &environment, flags: Vec::new() };
    Chosen::of(&sources).map_err(|wrong| wrong.why)
}

/// `value` as settings files have it.
fn shown(chosen: &Chosen, path: &str) -> String {
    let kind = find(path).unwrap().kind;
    chosen.value(path).map_or("null".into(), |value| value.in_yaml(kind).replace('"', ""))
}

const SENTINEL: &[(&str, &str)] =
    &[("REDIS_URL", "m,h:1"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_TYPE", "sentinel")];
const PER_SECOND_SENTINEL: &[(&str, &str)] = &[
    ("REDIS_URL", "h:1"),
    ("REDIS_PERSECOND", "true"),
    ("REDIS_PERSECOND_TYPE", "sentinel"),
    ("REDIS_PERSECOND_URL", "m,h:2"),
];

/// A value for each variable that is not its default, with what else it needs.
fn other_value(name: &str) -> (&'static str, &'static [(&'static str, &'static str)]) {
    const TLS: &[(&str, &str)] = &[
        ("GRPC_SERVER_USE_TLS", "1"),
        ("GRPC_SERVER_TLS_CERT", "c"),
        ("GRPC_SERVER_TLS_KEY", "k"),
    ];
    const REDIS_TLS: &[(&str, &str)] = &[
        ("REDIS_URL", "h:1"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_TLS", "t"),
        ("REDIS_TLS_CLIENT_CERT", "c"),
        ("REDIS_TLS_CLIENT_KEY", "k"),
    ];
    const REDIS: &[(&str, &str)] = &[("REDIS_URL", "a,h:1")];
    const PER_SECOND: &[(&str, &str)] =
        &[("REDIS_URL", "h:1"), ("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "a,h:2")];
    match name {
        "HOST" | "DEBUG_HOST" | "GRPC_HOST" => ("127.0.0.2", &[]),
        "PORT" | "DEBUG_PORT" | "GRPC_PORT" => ("7", &[]),
        "GRPC_UDS" => ("run/g.sock", &[]),
        "GRPC_SERVER_USE_TLS" => ("true", TLS),
        "GRPC_SERVER_TLS_CERT" | "GRPC_SERVER_TLS_KEY" | "GRPC_CLIENT_TLS_CACERT" => ("x", TLS),
        "GRPC_CLIENT_TLS_SAN" => (
            "x",
            &[
                ("GRPC_SERVER_USE_TLS", "1"),
                ("GRPC_SERVER_TLS_CERT", "c"),
                ("GRPC_SERVER_TLS_KEY", "k"),
                ("GRPC_CLIENT_TLS_CACERT", "a"),
            ],
        ),
        "LOG_LEVEL" => ("trace", &[]),
        "LOG_FORMAT" => ("json", &[]),
        "CONFIG_TYPE" => ("GRPC_XDS_SOTW", &[]),
        "BACKEND_TYPE" => ("memcache", &[]),
        "NEAR_LIMIT_RATIO" => ("0.95", &[]),
        "PROMETHEUS_ADDR" => (":1234", &[("USE_PROMETHEUS", "true")]),
        "RUNTIME_WATCH_ROOT" => ("false", &[]),
        "REDIS_URL" => ("h:2", &[]),
        "REDIS_TYPE" => ("cluster", REDIS),
        "REDIS_PERSECOND_TYPE" => ("CLUSTER", PER_SECOND),
        "REDIS_SOCKET_TYPE" => ("tcp", REDIS),
        "REDIS_PERSECOND_SOCKET_TYPE" => ("tcp", PER_SECOND),
        "REDIS_TLS_CLIENT_CERT" | "REDIS_TLS_CLIENT_KEY" | "REDIS_TLS_CACERT" => ("x", REDIS_TLS),
        "REDIS_PERSECOND_AUTH" | "REDIS_PERSECOND_TLS" => (
            "1",
            &[
                ("REDIS_URL", "h:1"),
                ("REDIS_PERSECOND", "true"),
                ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
                ("REDIS_PERSECOND_URL", "h:2"),
            ],
        ),
        "REDIS_PERSECOND_URL" | "REDIS_PERSECOND" => ("1", PER_SECOND),
        "REDIS_AUTH" => ("pw", REDIS),
        "REDIS_SENTINEL_AUTH" => ("pw", SENTINEL),
        "REDIS_PERSECOND_SENTINEL_AUTH" => ("pw", PER_SECOND_SENTINEL),
        "REDIS_TLS" => ("true", &[("REDIS_URL", "h:1"), ("REDIS_SOCKET_TYPE", "tcp")]),
        "REDIS_TIMEOUT" => ("3s", REDIS),
        "GRPC_MAX_CONNECTION_AGE" | "GRPC_MAX_CONNECTION_AGE_GRACE" => ("7m", &[]),
        "LIMIT_LIMIT_HEADER" | "LIMIT_REMAINING_HEADER" | "LIMIT_RESET_HEADER" => ("x-r", &[]),
        "CACHE_KEY_PREFIX" => ("mine", &[]),
        _ => ("1", &[]),
    }
}

/// Every variable has the effect of its table entry: it changes its setting, causes a warning, or is refused.
#[test]
fn every_variable_has_the_effect_of_its_table_entry() {
    for variable in VARIABLES {
        let (other, needs) = other_value(variable.name);
        let base: Vec<(&str, &str)> = [("RUNTIME_ROOT", "root"), ("RUNTIME_SUBDIRECTORY", "sub")]
            .into_iter()
            .chain(needs.iter().copied())
            .filter(|(name, _)| *name != variable.name)
            .collect();
        let with: Vec<(&str, &str)> =
            base.iter().copied().chain([(variable.name, other)]).collect();
        let (before, after) = (chosen(&base), chosen(&with));
        let name = variable.name;
        match variable.fate {
            Fate::Refused(..) => {
                let why = after.unwrap_err();
                assert!(why.starts_with(&format!("{name}={other} is not supported: ")), "{why}");
            }
            Fate::Unused(why) => {
                // Some defaults equal the value of this test.
                let value = if is_the_same(other, variable.quiet) { "0" } else { other };
                let with: Vec<_> = base.iter().copied().chain([(name, value)]).collect();
                let warning = format!("{name} has no effect: {why}");
                assert!(chosen(&with).unwrap().warnings.contains(&warning), "{warning}");
                let with: Vec<_> = base.iter().copied().chain([(name, variable.quiet)]).collect();
                let warnings = chosen(&with).unwrap().warnings;
                assert!(!warnings.iter().any(|it| it.starts_with(name)), "{warnings:?}");
            }
            // Both ways to watch find the same files.
            Fate::Makes(_) if name == "RUNTIME_WATCH_ROOT" => {
                assert_eq!(shown(&before.unwrap(), "policy.files"), "[root/sub/config]");
                assert_eq!(shown(&after.unwrap(), "policy.files"), "[root/sub/config]");
            }
            Fate::Sets(path) | Fate::Makes(path) => {
                let after = after.unwrap();
                let before = before.map_or("null".into(), |before| shown(&before, path));
                assert_ne!(shown(&after, path), before, "{name}");
                assert!(after.origin(path).unwrap().to_string().contains(name), "{name}");
            }
        }
    }
}

#[test]
fn envoyproxy_listeners_use_all_addresses_and_resp_stays_on_loopback() {
    let settings = chosen(&[("RUNTIME_ROOT", "root")]).unwrap();
    for (path, address) in [
        ("compat", "envoy"),
        ("listen.http.address", "0.0.0.0:8080"),
        ("listen.grpc.address", "0.0.0.0:8081"),
        ("listen.admin.address", "0.0.0.0:6070"),
        ("listen.resp.address", "127.0.0.1:6380"),
        ("policy.files", "[root/config]"),
        ("store.url", "memory"),
    ] {
        assert_eq!(shown(&settings, path), address);
    }
    let ours = [("RUNTIME_ROOT", "root"), ("TIDEGATE__COMPAT", "off")];
    let ours = chosen(&ours).unwrap();
    assert_eq!(shown(&ours, "listen.http.address"), "127.0.0.1:8080");
    let empty = chosen(&[]).unwrap();
    assert_eq!(shown(&empty, "compat"), "off");
}

#[test]
fn other_sources_have_precedence_over_envoyproxy_defaults() {
    let environment: Environment =
        [("REDIS_URL".to_owned(), "h:1".to_owned())].into_iter().collect();
    let text = "listen:\n  http: {address: \"127.0.0.1:9000\"}\n  admin: {address: off}\n\
                policy:\n  files: [mine.yaml]\nstore: {deadline: 20ms}\n";
    let file = Some(("settings.yaml", text));
    let sources = Sources { file, environment: &environment, flags: Vec::new() };
    let settings = Chosen::of(&sources).unwrap();
    for (path, expected) in [
        ("listen.http.address", "127.0.0.1:9000"),
        ("listen.admin.address", "off"),
        ("listen.grpc.address", "0.0.0.0:8081"),
        ("policy.files", "[mine.yaml]"),
        ("store.deadline", "20ms"),
    ] {
        assert_eq!(shown(&settings, path), expected);
    }
    let nothing = chosen(&[("REDIS_URL", "h:1")]).unwrap();
    assert!(nothing.warnings.iter().any(|it| it.contains("no policy is loaded")));
    let rooted = [("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "/ratelimit")];
    assert_eq!(shown(&chosen(&rooted).unwrap(), "policy.files"), "[/data/ratelimit/config]");
    let secret = chosen(&[("REDIS_URL", "h:1"), ("REDIS_SENTINEL_AUTH", "s3cret")]).unwrap();
    assert!(!secret.warnings.iter().any(|it| it.contains("s3cret")), "{:?}", secret.warnings);
}

#[test]
fn redis_variables_become_store_urls() {
    for (kind, socket, url, auth, tls, expected) in [
        ("SINGLE", "tcp", "h:6379", "", "false", "redis://h:6379"),
        ("single", "tcp", "h:6379", "pw:1@", "true", "rediss://pw:1%40@h:6379"),
        ("SINGLE", "tcp", "h:6379", "pw", "0", "redis://:pw@h:6379"),
        ("SINGLE", "unix", "/r.sock", "", "0", "unix:///r.sock"),
        ("SINGLE", "unix", "/r.sock", "bob:pw", "0", "unix:///r.sock?pass=pw&user=bob"),
        ("SINGLE", "unix", "redis://h:1/2", "", "0", "redis://h:1/2"),
        ("SENTINEL", "tcp", "m,a:1,redis://u:p@b:2", "", "0", "redis+sentinel://a:1,b:2/m"),
        ("CLUSTER", "tcp", "a:1,b:2", "pw", "1", "rediss+cluster://:pw@a:1,b:2"),
    ] {
        let variables = [
            ("REDIS_TYPE", kind),
            ("REDIS_SOCKET_TYPE", socket),
            ("REDIS_URL", url),
            ("REDIS_AUTH", auth),
            ("REDIS_TLS", tls),
        ];
        let settings = chosen(&variables).unwrap();
        assert_eq!(settings.text("store.url").as_deref(), Some(expected));
        // The store accepts the URL.
        tidegate::store::redis::RedisConfig::new(expected).unwrap();
    }
    for (auth, expected) in [
        ("s3:cr@t", "redis+sentinel://a:1/m?sentinel_user=s3&sentinel_pass=cr%40t"),
        ("s3cret", "redis+sentinel://a:1/m?sentinel_pass=s3cret"),
    ] {
        let variables =
            [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m,a:1"), ("REDIS_SENTINEL_AUTH", auth)];
        let settings = chosen(&variables).unwrap();
        assert_eq!(settings.text("store.url").as_deref(), Some(expected));
        tidegate::store::redis::RedisConfig::new(expected).unwrap();
        let printed = settings.in_yaml();
        assert!(printed.contains("sentinel_pass=redacted"), "{printed}");
        assert!(!printed.contains("s3cret") && !printed.contains("cr%40t"), "{printed}");
    }
    let wrong = chosen(&[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "m")]).unwrap_err();
    assert!(wrong.contains("REDIS_URL: expected the name of the primary"), "{wrong}");
}

#[test]
fn an_incomplete_group_of_variables_causes_a_warning() {
    let variables = [("RUNTIME_ROOT", "r"), ("REDIS_AUTH", "pw"), ("GRPC_SERVER_TLS_CERT", "c")];
    let warnings = chosen(&variables).unwrap().warnings;
    let is_reported =
        |name: &str| warnings.iter().any(|it| it.starts_with(&format!("{name} has no")));
    assert!(is_reported("REDIS_AUTH") && is_reported("GRPC_SERVER_TLS_CERT"), "{warnings:?}");
    assert!(!warnings.iter().any(|it| it.contains("pw")), "{warnings:?}");
}

/// The expected table at the end of the guide.
fn table() -> String {
    let mut table = String::from(
        "| variable | default of envoyproxy/ratelimit | in Tidegate |\n|---|---|---|\n",
    );
    for variable in VARIABLES {
        let default = match variable.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let becomes = match variable.fate {
            Fate::Sets(path) => format!("`{path}`"),
            Fate::Makes(path) => format!("a part of `{path}`"),
            Fate::Unused(why) => format!("no effect: {why}"),
            Fate::Refused(values, why) => {
                format!("`{}` does not start: {why}", values.join("`, `"))
            }
        };
        table += &format!("| `{}` | {default} | {becomes} |\n", variable.name);
    }
    table
}

#[test]
fn the_guide_lists_every_variable() {
    let page =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/replace-envoyproxy-ratelimit.md");
    let found = std::fs::read_to_string(page).unwrap_or_default();
    let fresh = std::env::temp_dir().join("tidegate-variables.md");
    std::fs::write(&fresh, table()).unwrap();
    let hint = format!("put {} at the end of the guide", fresh.display());
    assert!(found.ends_with(&table()), "{hint}");
}
