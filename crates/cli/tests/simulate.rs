//! `tidegate simulate` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use assert_cmd::Command;
use assert_cmd::assert::Assert;

fn simulate(args: &str) -> Assert {
    let args = args.split_whitespace();
    Command::cargo_bin("tidegate").unwrap().args(["simulate", "cluster"]).args(args).assert()
}

fn text(args: &str) -> String {
    String::from_utf8(simulate(args).success().get_output().stdout.clone()).unwrap()
}

/// The figure in the line that starts with this name.
fn figure(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.split_whitespace().last().unwrap().trim_end_matches('%').parse().unwrap()
}

#[test]
fn the_same_seed_gives_the_same_world_within_its_limit() {
    let args = "--nodes 64 --seed 7 --limit 50/1s --algorithm token_bucket --seconds 6 --no-faults";
    let report = text(args);
    assert_eq!(report, text(args));
    assert!(report.contains("64 nodes") && report.contains("Every promise was kept."), "{report}");
    assert!(figure(&report, "admitted") <= figure(&report, "limit alone"), "{report}");
    assert_eq!(figure(&report, "failed"), 0, "{report}");
    assert!(figure(&report, "utilisation") >= 90, "{report}");
}

/// Two nodes share one key, and call the store for a small part of its requests.
#[test]
fn leases_reduce_store_calls() {
    let limit = "--nodes 2 --keys 1 --limit 500/1s --algorithm token_bucket --load 100";
    let report = text(&format!("--tier leased {limit} --seconds 6 --no-faults --seed 3"));
    assert!(report.contains("Every promise was kept."), "{report}");
    let (asked, calls) = (figure(&report, "units requested"), figure(&report, "store calls"));
    assert!(calls * 4 < asked, "{report}");
    assert!(figure(&report, "utilisation") >= 95, "{report}");
}

#[test]
fn decisions_of_the_fallback_are_reported() {
    let outage = "--fault store_down --seed 5 --algorithm gcra --limit 100/1s --load 200";
    for mode in ["allow", "deny", "local"] {
        let report = text(&format!("--tier exact --on-store-failure {mode} {outage}"));
        assert!(report.contains(&format!("on_store_failure {mode}")), "{report}");
        assert!(figure(&report, "fallback") > 0, "{report}");
    }
}

#[test]
fn many_worlds_are_reported_in_one_line() {
    let report = text("--worlds 20 --seed 100 --fault loss --fault crash");
    assert!(report.starts_with("20 worlds kept every promise"), "{report}");
    assert_eq!(report.lines().count(), 1, "{report}");
}

#[test]
fn an_invalid_world_is_refused() {
    for (args, expected) in [
        ("--nodes 0", "nodes must be 1 to 1024"),
        ("--seconds 4", "seconds must be 5 to 600"),
        ("--fault flood", "possible values"),
        ("--fault loss --no-faults", "cannot be used with"),
        ("--tier local", "possible values"),
    ] {
        let refused = simulate(args).code(2);
        let report = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(report.contains(expected), "{args}: {report}");
    }
}

/// Units above the limit alone are reported with the reason why no promise is broken.
#[test]
fn units_that_faults_add_are_explained() {
    let outage = "--fault store_down --algorithm token_bucket --limit 100/1s --load 300 --nodes 4";
    let report = text(&format!("--tier exact --on-store-failure allow {outage} --seed 5"));
    let (admitted, limit) = (figure(&report, "admitted"), figure(&report, "limit alone"));
    assert!(admitted > limit && report.contains("Every promise was kept."), "{report}");
    let above = format!("{} units more than the limit alone", admitted - limit);
    assert!(report.contains(&above), "{report}");
}

fn overload(args: &str) -> Assert {
    let args = args.split_whitespace();
    Command::cargo_bin("tidegate").unwrap().args(["simulate", "overload"]).args(args).assert()
}

#[test]
fn concurrency_limiters_are_compared_in_text_and_in_a_picture() {
    let svg = std::env::temp_dir().join(format!("tidegate-overload-{}.svg", std::process::id()));
    let args = format!("--load 200x10 --limiter none --limiter adaptive --svg {}", svg.display());
    let report =
        || String::from_utf8(overload(&args).success().get_output().stdout.clone()).unwrap();
    let text = report();
    assert_eq!(text, report(), "the same seed gives the same figures");
    for title in ["goodput", "p99 of admitted requests", "limit", "success by class"] {
        assert!(text.contains(title), "{text}");
    }
    assert!(!text.contains("vegas"), "{text}");
    assert!(figure(&text, "adaptive") > 90, "goodput: {text}");
    assert!(figure(&text, "none") < 20, "goodput: {text}");
    let picture = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<polyline").count(), 6, "three panels of two limiters");
}

#[test]
fn a_load_that_cannot_be_is_refused() {
    for load in ["", "80x", "x5", "9000", "80x0", "80x99999", "80;90"] {
        let refused = overload(&format!("--load={load}")).code(2);
        let report = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(report.contains("80x30,1000x30") || load.is_empty(), "{load}: {report}");
    }
}
