use super::*;

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn chosen(file: &str, variables: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Chosen {
    try_chosen(file, variables, flags).unwrap()
}

fn try_chosen(
    file: &str,
    variables: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Chosen, String> {
    let environment = environment(variables);
    let flags = flags.iter().map(|(path, value)| (*path, vec![(*value).to_owned()])).collect();
    let sources = Sources { file: Some(("s.yaml", file)), environment: &environment, flags };
    Chosen::of(&sources).map_err(|wrong| wrong.why)
}

#[test]
fn flags_have_precedence_over_the_environment_and_the_file() {
    let file = "threads: 2\nstore: {deadline: 1ms, max_in_flight: 3}\n";
    let variables = [("TIDEGATE__THREADS", "4"), ("TIDEGATE__STORE__DEADLINE", "2ms")];
    let settings = chosen(file, &variables, &[("threads", "8")]);
    assert_eq!(settings.number("threads"), Some(8));
    assert_eq!(settings.span("store.deadline"), Some(Duration::from_millis(2)));
    assert_eq!(settings.number("store.max_in_flight"), Some(3));
    assert_eq!(settings.text("store.url").as_deref(), Some("memory"));
    let origins = ["threads", "store.deadline", "store.max_in_flight"];
    let origins = origins.map(|path| settings.origin(path).unwrap().to_string());
    assert_eq!(origins, ["--threads", "TIDEGATE__STORE__DEADLINE", "s.yaml:2:39"]);
    assert_eq!(settings.origin("store.url"), None);
}

#[test]
fn all_errors_are_reported_with_their_place() {
    let file = "lisen: {http: {address: off}}\nlisten:\n  http:\n    adress: off\n\
                store: {deadline: soon}\nlog: loud\nthreads: {a: 1}\n";
    let variables = [("TIDEGATE__STOR__URL", "memory"), ("TIDEGATE__LOG__LEVEL", "loud")];
    let wrong = try_chosen(file, &variables, &[("threads", "0")]).unwrap_err();
    let lines: Vec<&str> = wrong.lines().collect();
    let expected = [
        "s.yaml:1:1: unknown setting \"lisen\"; did you mean listen? (at lisen.http.address)",
        "s.yaml:4:5: unknown setting \"adress\"; did you mean address? (at listen.http.adress)",
        "s.yaml:5:19: expected a time such as 250ms or 5m, from 1ms to 1m, found \"soon\" (at store.deadline)",
        "s.yaml:6:6: log is a map of settings, not a value",
        "s.yaml:7:11: unknown setting \"a\"; threads is a value, not a map (at threads.a)",
        "TIDEGATE__LOG__LEVEL: expected one of error, warn, info, debug, found \"loud\"",
        "TIDEGATE__STOR__URL: unknown setting; did you mean TIDEGATE__STORE__URL?",
        "--threads: expected a number from 1 to 1024, found \"0\"",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn printed_settings_have_the_same_values_when_read() {
    let file = "policy: {files: [a.yaml, 'b c']}\nlisten:\n  grpc: {address: 'unix:run/g'}\n  \
                resp: {address: off}\nstore: {memory: 64MiB, url: 'redis://bob:s3cret@h:1/0'}\n";
    let variables = [("TIDEGATE__LIMITS__DRAIN", "1m30s"), ("TIDEGATE__LOG__FORMAT", "JSON")];
    let first = chosen(file, &variables, &[("policy.merge", "true")]);
    let text = first.in_yaml();
    assert!(!text.contains("s3cret"), "{text}");
    assert!(text.contains("  drain: 90s  # from TIDEGATE__LIMITS__DRAIN\n"), "{text}");
    let second = chosen(&text, &[], &[]);
    for setting in table::SETTINGS.iter().filter(|setting| setting.path != "store.url") {
        assert_eq!(first.value(setting.path), second.value(setting.path), "{}", setting.path);
    }
    let url = second.text("store.url");
    assert_eq!(url.as_deref(), Some("redis://bob:redacted@h:1/0"));
    let bare = |text: &str| {
        text.lines().map(|line| line.split("  #").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(bare(&second.in_yaml()), bare(&text));
}

#[test]
fn a_certificate_needs_its_key() {
    let wrong = try_chosen("listen: {grpc: {tls: {certificate: c}}}", &[], &[]).unwrap_err();
    assert_eq!(wrong, "listen.grpc.tls: certificate and key go together: give both or neither");
    let wrong = try_chosen("listen: {http: {tls: {client_ca: c}}}", &[], &[]).unwrap_err();
    assert!(wrong.contains("client_ca needs TLS"), "{wrong}");
}

/// The expected reference page.
fn reference() -> String {
    let mut page = String::from(REFERENCE);
    for setting in table::SETTINGS {
        let (path, kind, about) = (setting.path, setting.kind, setting.about);
        let default = match setting.default {
            "" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        let flag = match setting.flag {
            "" => String::new(),
            flag => format!(", `--{flag}`"),
        };
        let variable = setting.variable();
        page += &format!("\n## `{path}`\n{about}.\n\n");
        page += &format!("Value: {kind}. Default: {default}. Also: `{variable}`{flag}.\n");
    }
    page
}

const REFERENCE: &str = "# Settings

<!-- Written by the test `the_reference_is_up_to_date` of tidegate-cli from the table that reads them. -->

`tidegate serve` reads the settings file (`--settings FILE`, YAML), the environment and its flags; flags have precedence over
the environment, and the environment over the file. In the file, a dot is a nested map: `store.namespace` is

```yaml
store:
  namespace: tg
```

If a setting or value is unknown or out of bounds, the daemon reports its place and does not start.
`tidegate serve --print-config` prints all settings in force with the source of each, as a settings file. Limits are not
settings: they are in [policy files](policy.md), which are reloaded at run time.
";

/// Compares the page with the table. If they differ, the expected page is in the temporary folder.
#[test]
fn the_reference_is_up_to_date() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/settings.md");
    let fresh = std::env::temp_dir().join("tidegate-settings.md");
    std::fs::write(&fresh, reference()).unwrap();
    let found = std::fs::read_to_string(page).unwrap_or_default();
    assert!(found == reference(), "cp {} docs/reference/settings.md", fresh.display());
}

#[test]
fn upstreams_have_names_and_settings_of_their_own() {
    let file = "gateway: {upstreams: {api: {urls: [http://a, http://b], routes: [/v1], \
                health: {path: /h, interval: 2s}}, web: {urls: [http://c]}}}";
    let variables = [("TIDEGATE__GATEWAY__UPSTREAMS__WEB__ROUTES", "/,a.example")];
    let first = chosen(file, &variables, &[]);
    assert_eq!(first.upstreams().collect::<Vec<_>>(), ["api", "web"]);
    let list = |texts: &[&str]| Some(Value::List(texts.iter().map(|&it| it.into()).collect()));
    assert_eq!(first.of_upstream("api", "urls"), list(&["http://a", "http://b"]));
    assert_eq!(first.of_upstream("web", "routes"), list(&["/", "a.example"]));
    let span = |seconds| Some(Value::Span(Duration::from_secs(seconds)));
    assert_eq!(first.of_upstream("api", "health.interval"), span(2));
    assert_eq!(first.of_upstream("web", "eject_for"), span(10));
    assert_eq!(first.of_upstream("web", "head_timeout"), None);
    let place = first.place_of_upstream("web", "routes");
    assert_eq!(place, "TIDEGATE__GATEWAY__UPSTREAMS__WEB__ROUTES: gateway.upstreams.web.routes");
    let second = chosen(&first.in_yaml(), &[], &[]);
    for (name, rest) in [("api", "urls"), ("api", "health.interval"), ("web", "routes")] {
        assert_eq!(first.of_upstream(name, rest), second.of_upstream(name, rest), "{rest}");
    }
}

#[test]
fn mistakes_in_upstreams_are_reported_with_their_place() {
    for (file, expected) in [
        (
            "gateway: {upstreams: {api: {url: [http://a]}}}",
            "unknown setting \"url\"; did you mean urls? (at gateway.upstreams.api.url)",
        ),
        (
            "gateway: {upstreams: {a.b: {urls: [http://a]}}}",
            "expected a name of letters, digits, - and _, found \"a.b\" (at gateway.upstreams.a.b.urls)",
        ),
        ("gateway: {upstreams: {api: {tls: {http2: maybe}}}}", "expected true or false"),
        ("gateway: {upstreams: {api: [http://a]}}", "gateway.upstreams.api is a map of settings"),
    ] {
        let wrong = try_chosen(file, &[], &[]).unwrap_err();
        assert!(wrong.contains(expected), "{wrong}");
    }
}
