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
fn flags_go_before_the_environment_and_that_before_the_file() {
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
fn everything_that_is_wrong_is_told_with_its_place() {
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
        "TIDEGATE__STOR__URL: there is no such setting; did you mean TIDEGATE__STORE__URL?",
        "--threads: expected a number from 1 to 1024, found \"0\"",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_is_printed_chooses_the_same_when_it_is_read() {
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
    assert!(wrong.contains("client_ca asks for TLS"), "{wrong}");
}

/// The page of all settings, as it has to be.
fn reference() -> String {
    let mut page = String::from(REFERENCE);
    for setting in table::SETTINGS {
        let (path, kind, about) = (setting.path, setting.kind, setting.about);
        let default = match setting.default {
            "" => "nothing".to_owned(),
            default => format!("`{default}`"),
        };
        let flag = match setting.flag {
            "" => String::new(),
            flag => format!(", `--{flag}`"),
        };
        let variable = setting.variable();
        page += &format!("\n## `{path}`\n{about}.\n\n");
        page += &format!("Takes {kind}. Default: {default}. Also: `{variable}`{flag}.\n");
    }
    page
}

const REFERENCE: &str = "# Settings of the daemon

<!-- Written by the test `the_reference_is_up_to_date` of tidegate-cli from the table that reads them. -->

`tidegate serve` reads `--settings FILE` (YAML), then the environment, then its flags; each goes before the
last. In the file, a dot is a map within a map: `store.deadline` is

```yaml
store:
  deadline: 5ms
```

What is unknown, misspelt or out of bounds is told with its place, and the daemon does not start.
`tidegate serve --print-config` prints all settings in force and where each comes from, as a file that can be
loaded again. Policies are no settings: [policy files](policy.md) are read again while the daemon runs.
";

/// The page is what the table says; if not, the text to put there is written beside the build.
#[test]
fn the_reference_is_up_to_date() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/settings.md");
    let fresh = std::env::temp_dir().join("tidegate-settings.md");
    std::fs::write(&fresh, reference()).unwrap();
    let found = std::fs::read_to_string(page).unwrap_or_default();
    assert!(found == reference(), "cp {} docs/reference/settings.md", fresh.display());
}
