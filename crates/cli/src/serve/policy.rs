//! The policy, read at the start and again whenever its files change.

use std::path::PathBuf;

use tidegate::Clock;
use tidegate::policy::{Merging, Policy, Refusal, Source, Texts, Update, Watch};
use tidegate_server::{Event, Level, RateLimitService};

use crate::settings::Chosen;

/// Loads the policy, and loads it again whenever it changes; `None` if there are no files.
pub(super) fn watch(chosen: &Chosen, service: &RateLimitService) -> Result<Option<Watch>, String> {
    let paths = chosen.list("policy.files").into_iter().map(PathBuf::from).collect::<Vec<_>>();
    if paths.is_empty() {
        return Ok(None);
    }
    let merging = if chosen.flag("policy.merge") { Merging::Allow } else { Merging::Refuse };
    let source = Source::new(paths, merging);
    let texts = source.read().map_err(|error| error.to_string())?;
    let loaded = texts.load();
    let Some(policy) = loaded.policy else {
        return Err(format!("the policy cannot be used\n{}", loaded.findings.trim_end()));
    };
    let has_secret = chosen.text("policy.enforce_secret_file").is_some();
    let all_findings = move |policy: &Policy, findings: &str| {
        let shares = policy.predictable_shares().filter(|_| !has_secret);
        [findings.to_owned(), shares.unwrap_or_default()].join("\n").trim().to_owned()
    };
    let findings = all_findings(&policy, &loaded.findings);
    service.status().needs_policy();
    service.replace(policy);
    let clock = Clock::default();
    service.status().policy_loaded(texts.revision(), names(&texts), clock.wall(clock.now()));
    let say = |level, text: &str| service.status().log().say(level, Event::PolicyLoaded, text);
    match &*findings {
        "" => say(Level::Info, "policy loaded"),
        findings => say(Level::Warn, &format!("policy loaded\n{findings}")),
    }
    let (service, files) = (service.clone(), source.clone());
    let watch = Watch::builder(source).in_force(&texts).start(move |change| {
        let (status, log) = (service.status(), service.status().log());
        match change {
            Ok(Update { policy, findings, revision }) => {
                let fresh_starts = service.fresh_starts(&policy);
                let findings = all_findings(&policy, &findings);
                service.replace(policy);
                let names = files.read().map(|texts| names(&texts)).unwrap_or_default();
                status.policy_loaded(revision, names, clock.wall(clock.now()));
                let findings = told(findings, &fresh_starts);
                let level = if findings.is_empty() { Level::Info } else { Level::Warn };
                log.say(level, Event::PolicyLoaded, format_args!("policy reloaded\n{findings}"));
            }
            Err(refusal) => {
                let why = why(&refusal);
                status.policy_refused(&why);
                let told = format!("policy not reloaded: {why}");
                log.say(Level::Error, Event::PolicyRefused, told);
            }
        }
    });
    watch.map(Some).map_err(|error| format!("cannot watch the policy: {error}"))
}

/// What is told about a policy that was put in force: findings in its files, and limits whose keys start
/// afresh.
fn told(findings: String, fresh_starts: &[String]) -> String {
    let warnings = fresh_starts.iter().map(|message| format!("warning: {message}"));
    let findings = Some(findings).filter(|findings| !findings.is_empty());
    findings.into_iter().chain(warnings).collect::<Vec<String>>().join("\n")
}

fn names(texts: &Texts) -> Vec<String> {
    texts.names().map(ToOwned::to_owned).collect()
}

/// What is wrong with the files, with all that was found.
fn why(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Wrong { findings, .. } => format!("{refusal}\n{findings}"),
        other => other.to_string(),
    }
}
