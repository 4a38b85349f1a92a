//! `tidegate compare` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::process::{Command as Process, Stdio};

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use serde_json::Value;

const ALGORITHMS: [&str; 6] =
    ["fixed_window", "sliding_log", "sliding_window", "token_bucket", "gcra", "leaky_bucket"];

fn tidegate(args: &str) -> Assert {
    Command::cargo_bin("tidegate").unwrap().args(args.split_whitespace()).assert()
}

fn text(args: &str) -> String {
    String::from_utf8(tidegate(args).success().get_output().stdout.clone()).unwrap()
}

fn json(args: &str) -> Value {
    serde_json::from_str(&text(&format!("compare --json {args}"))).unwrap()
}

fn complaint(args: &str) -> String {
    String::from_utf8(tidegate(args).code(2).get_output().stderr.clone()).unwrap()
}

fn named<'a>(list: &'a Value, field: &str, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one[field] == name);
    found.unwrap_or_else(|| panic!("no {field} {name} in {list}"))
}

fn result<'a>(document: &'a Value, shape: &str, algorithm: &str) -> &'a Value {
    named(&named(&document["shapes"], "shape", shape)["results"], "algorithm", algorithm)
}

fn figure(document: &Value, shape: &str, algorithm: &str, name: &str) -> u64 {
    let result = result(document, shape, algorithm);
    result[name].as_u64().unwrap_or_else(|| panic!("{name} is no whole number in {result}"))
}

#[test]
fn json_names_every_shape_and_algorithm_with_whole_numbers() {
    let document = json("");
    let shapes = document["shapes"].as_array().unwrap();
    let names: Vec<_> = shapes.iter().map(|shape| shape["shape"].as_str().unwrap()).collect();
    let expected = [
        "boundary_burst",
        "window_drip",
        "retry_storm",
        "steady",
        "idle_then_burst",
        "batch_job",
        "flash_sale",
    ];
    assert_eq!(names, expected);
    for shape in names {
        let demand = named(&document["shapes"], "shape", shape)["demand"].as_u64().unwrap();
        for algorithm in ALGORITHMS {
            let figure = |name| figure(&document, shape, algorithm, name);
            for name in ["max_in_window", "max_in_2s", "max_delay_ms", "mean_delay_ms"] {
                figure(name);
            }
            assert!(figure("state_bytes") >= 8, "{shape} {algorithm}");
            assert_eq!(figure("admitted") + figure("denied"), figure("offered"));
            assert_eq!(figure("admitted") + figure("gave_up"), demand, "{shape} {algorithm}");
            let series = result(&document, shape, algorithm)["series"].as_array().unwrap();
            assert_eq!(series.len(), 60);
        }
    }
}

#[test]
fn a_fixed_window_admits_twice_its_limit_across_a_boundary() {
    let document = json("");
    let most = |algorithm| figure(&document, "boundary_burst", algorithm, "max_in_2s");
    assert_eq!(most("fixed_window"), 200);
    assert_eq!(most("sliding_log"), 100);
    // limit + ceil(limit * 2 s / 60 s)
    assert!(most("sliding_window") <= 104, "{}", most("sliding_window"));
    assert_eq!(figure(&document, "boundary_burst", "fixed_window", "denied"), 0);
}

#[test]
fn every_window_length_has_the_boundary_flaw() {
    for (limit, count) in [("10/1s", 10), ("5/10s", 5), ("100/60s", 100), ("7/hour", 7)] {
        let document = json(&format!("--shape boundary_burst --limit {limit}"));
        let most = |algorithm| figure(&document, "boundary_burst", algorithm, "max_in_window");
        assert_eq!(most("fixed_window"), 2 * count, "{limit}");
        assert_eq!(most("sliding_log"), count, "{limit}");
    }
}

#[test]
fn a_sliding_window_is_no_exact_rolling_window_and_a_log_is() {
    let document = json("");
    let most = |algorithm| figure(&document, "window_drip", algorithm, "max_in_window");
    assert!(most("sliding_window") > 190, "{}", most("sliding_window"));
    assert!(most("sliding_window") <= 200, "its bound");
    for shape in document["shapes"].as_array().unwrap() {
        let log = named(&shape["results"], "algorithm", "sliding_log");
        assert!(log["max_in_window"].as_u64().unwrap() <= 100, "{log}");
    }
}

#[test]
fn gcra_is_a_token_bucket_of_the_same_burst() {
    for options in ["", "--burst 50", "--burst 1", "--limit 7/3s --burst 20"] {
        let document = json(options);
        for shape in document["shapes"].as_array().unwrap() {
            let of = |name| {
                let mut row = named(&shape["results"], "algorithm", name).clone();
                row.as_object_mut().unwrap().remove("algorithm");
                row
            };
            assert_eq!(of("token_bucket"), of("gcra"), "{options} {}", shape["shape"]);
        }
    }
    assert!(text("compare --no-chart").contains("gcra and token_bucket decided alike"));
}

#[test]
fn the_burst_is_what_an_idle_client_may_take_at_once() {
    let document = json("--burst 50 --shape idle_then_burst");
    let most = |algorithm| figure(&document, "idle_then_burst", algorithm, "max_in_2s");
    // 50, plus one refilled unit per 600 ms.
    assert!((50..=53).contains(&most("token_bucket")), "{}", most("token_bucket"));
    assert_eq!(most("sliding_window"), 100, "a window saves nothing up and has no burst");
    assert!(most("leaky_bucket") <= 4);
}

#[test]
fn only_the_leaky_bucket_delays() {
    let document = json("--shape flash_sale");
    for algorithm in ALGORITHMS {
        let delay = figure(&document, "flash_sale", algorithm, "max_delay_ms");
        match algorithm {
            "leaky_bucket" => assert!((59_000..=60_000).contains(&delay), "{delay}"),
            _ => assert_eq!(delay, 0, "{algorithm}"),
        }
    }
    assert!(figure(&document, "flash_sale", "leaky_bucket", "max_in_window") <= 100);
}

#[test]
fn the_same_seed_gives_the_same_document() {
    let storm = |seed| text(&format!("compare --json --shape retry_storm --seed {seed}"));
    assert_eq!(storm(7), storm(7));
    assert_ne!(storm(7), storm(8));
    assert_eq!(text("compare"), text("compare --seed 1"));
}

#[test]
fn a_limit_that_one_algorithm_refuses_is_no_failure_of_the_others() {
    let document = json("--limit 20000/60s --shape boundary_burst");
    let log = result(&document, "boundary_burst", "sliding_log");
    assert!(log["refused"].as_str().unwrap().contains("at most 10,000"), "{log}");
    assert_eq!(log.as_object().unwrap().len(), 2, "{log}");
    assert_eq!(figure(&document, "boundary_burst", "fixed_window", "max_in_2s"), 40_000);
    let table = text("compare --limit 20000/60s --shape boundary_burst");
    assert!(table.contains("sliding_log     refused: a sliding log keeps one entry"), "{table}");
    let alone = text("compare --limit 20000/60s --shape steady --algorithm sliding_log");
    assert!(alone.contains("refused"), "{alone}");
}

#[test]
fn shapes_and_algorithms_can_be_chosen() {
    let document = json(
        "--shape steady --shape batch_job --algorithm gcra --algorithm fixed_window --shape steady",
    );
    let shapes = document["shapes"].as_array().unwrap();
    assert_eq!(shapes.len(), 2);
    for shape in shapes {
        assert_eq!(shape["results"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn a_wrong_command_line_gets_a_suggestion() {
    let rate = "rate must be written COUNT/PERIOD, such as 100/60s";
    for (args, expected) in [
        ("--limit 100", rate),
        ("--limit 100/fortnight", rate),
        ("--limit 0/60s", "count of a rate must be between 1 and"),
        ("--limit 5000000/60s", "too many to simulate: at most 100000"),
        ("--limit 5/10us", "too short to simulate: at least 1ms"),
        ("--burst 0", "invalid value '0' for '--burst <N>': burst must be between 1 and 2^32"),
        ("--burst 4294967297", "burst must be between 1 and 2^32"),
        ("--limit 1/year --burst 101", "lower the burst or raise the rate"),
        ("--shape tsunami", "possible values: boundary_burst, window_drip"),
        ("--algorithm gcar", "a similar value exists: 'gcra'"),
    ] {
        let complaint = complaint(&format!("compare {args}"));
        assert!(complaint.contains(expected), "{args}: {complaint}");
    }
}

#[test]
fn alone_the_command_prints_its_help() {
    let help = text("");
    assert!(help.contains("Usage: tidegate"), "{help}");
    assert!(help.contains("tidegate compare"), "{help}");
    let figures = text("compare --help");
    assert!(figures.contains("16 per entry for sliding_log"), "{figures}");
}

#[test]
fn piped_output_is_plain_and_80_columns_wide() {
    for args in ["compare", "compare --limit 20000/60s --shape steady", "compare --limit 3/day"] {
        let text = text(args);
        assert!(!text.contains('\x1b'), "{args}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{args}: {line}");
            assert_eq!(line, line.trim_end(), "{args}");
        }
    }
    assert!(text("compare --color always").contains('\x1b'));
    assert!(!text("compare --no-chart").contains('█'));
}

#[test]
fn figures_above_the_limit_are_marked() {
    let table = text("compare --no-chart --shape boundary_burst");
    let line = |name: &str| {
        let found = table.lines().find(|line| line.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in {table}")).to_owned()
    };
    assert_eq!(line("fixed_window").matches("200*").count(), 2);
    assert!(!line("sliding_log").contains('*'));
}

#[test]
fn a_closed_pipe_is_no_error() {
    for args in [&["compare"][..], &["compare", "--json"], &[]] {
        let mut process = Process::new(assert_cmd::cargo::cargo_bin!("tidegate"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}
