//! Loads the policy at start, and reloads it when its files change.

use std::path::PathBuf;

use tidegate::Clock;
use tidegate::policy::{Domain, Merging, Policy, Refusal, Revision, Source, Texts, Update, Watch};
use tidegate_server::{Gateway, RateLimitService, UnclearDomain};
use tracing::{error, info, warn};

use crate::settings::Chosen;

/// Maximum number of files in a log line.
const MAX_NAMES: usize = 8;

/// The event and the message of a policy that is not used.
const REFUSED: &str = "policy_refused";
const NOT_RELOADED: &str = "policy not reloaded, the last one stays in force";

/// Loads the policy, and reloads it on changes; `None` without policy files.
///
/// A policy must tell which of its domains the gateway enforces.
pub(super) fn watch(
    chosen: &Chosen,
    service: &RateLimitService,
    gateway: Option<&Gateway>,
) -> Result<Option<Watch>, String> {
    let paths = chosen.list("policy.files").into_iter().map(PathBuf::from).collect::<Vec<_>>();
    if paths.is_empty() {
        return match gateway.map(|gateway| gateway.domain.clone()) {
            Some(Some(name)) => Err(unclear(&UnclearDomain::Missing(name))),
            Some(None) => {
                warn!(event = "policy_finding", "no policy: the gateway limits nothing");
                Ok(None)
            }
            None => Ok(None),
        };
    }
    let merging = if chosen.flag("policy.merge") { Merging::Allow } else { Merging::Refuse };
    let source = Source::new(paths, merging);
    let texts = source.read().map_err(|error| error.to_string())?;
    let loaded = texts.load();
    let Some(policy) = loaded.policy else {
        return Err(format!("the policy cannot be used\n{}", loaded.findings.trim_end()));
    };
    let unlimited = gateway
        .map_or(Ok(None), |gateway| limits_nothing(gateway, &policy))
        .map_err(|domain| unclear(&domain))?;
    let has_secret = chosen.text("policy.enforce_secret_file").is_some();
    let predictable = policy.predictable_shares().filter(|_| !has_secret);
    service.status().needs_policy();
    let (clock, files, revision) = (Clock::default(), names(&texts), texts.revision());
    let in_force = Loaded::of(&policy, &files, revision);
    service.replace(policy);
    service.status().policy_loaded(revision, files, clock.wall(clock.now()));
    in_force.log("policy_loaded", "policy loaded");
    log_findings(&loaded.findings, predictable.into_iter().chain(unlimited));
    let (service, files, gateway) = (service.clone(), source.clone(), gateway.cloned());
    let watch = Watch::builder(source).in_force(&texts).start(move |change| match change {
        Ok(Update { policy, findings, revision }) => {
            let unlimited = gateway.as_ref().map_or(Ok(None), |it| limits_nothing(it, &policy));
            let unlimited = match unlimited {
                Ok(unlimited) => unlimited,
                Err(unclear) => {
                    service.status().policy_refused(&unclear.to_string());
                    return error!(event = REFUSED, "{NOT_RELOADED}: {unclear}");
                }
            };
            let (fresh_starts, before) = (service.fresh_starts(&policy), service.status().policy());
            let predictable = policy.predictable_shares().filter(|_| !has_secret);
            let files = files.read().map(|texts| names(&texts)).unwrap_or_default();
            let in_force = Loaded::of(&policy, &files, revision);
            service.replace(policy);
            service.status().policy_loaded(revision, files, clock.wall(clock.now()));
            if before.revision == Some(revision) && before.refusal.is_none() {
                // A reload on request, of files that have not changed.
                return in_force.log("policy_unchanged", "policy unchanged");
            }
            in_force.log("policy_reloaded", "policy reloaded");
            let about_all = predictable.into_iter().chain(fresh_starts).chain(unlimited);
            log_findings(&findings, about_all);
        }
        Err(refusal) => {
            service.status().policy_refused(&refusal.to_string());
            log_refusal(&refusal);
        }
    });
    watch.map(Some).map_err(|error| format!("cannot watch the policy: {error}"))
}

/// A warning if the gateway forwards every request under this policy.
fn limits_nothing(gateway: &Gateway, policy: &Policy) -> Result<Option<String>, UnclearDomain> {
    let domain = gateway.domain_in(policy)?;
    Ok(domain.is_none().then(|| "no domain has `requests`: the gateway limits nothing".into()))
}

fn unclear(domain: &UnclearDomain) -> String {
    format!("the policy cannot be used: {domain}")
}

/// A policy in force, as it is logged.
struct Loaded {
    file: String,
    revision: String,
    limits: usize,
}

impl Loaded {
    fn of(policy: &Policy, files: &[String], revision: Revision) -> Self {
        let rules = policy.domains().flat_map(Domain::rules);
        let limits = rules.map(|rule| rule.limits().len()).sum();
        Self { file: in_short(files), revision: revision.to_string(), limits }
    }

    fn log(&self, event: &str, message: &str) {
        let Self { file, revision, limits } = self;
        info!(event, file = &**file, revision = &**revision, limits, "{message}");
    }
}

fn log_refusal(refusal: &Refusal) {
    match refusal {
        Refusal::Wrong { errors, findings } => {
            error!(event = REFUSED, errors, "{NOT_RELOADED}");
            log_findings(findings, None);
        }
        other => error!(event = REFUSED, "{NOT_RELOADED}: {other}"),
    }
}

/// Logs findings, one `file:line:column: message` per line, in their order, and then warnings about the
/// policy as a whole.
fn log_findings(findings: &str, about_all: impl IntoIterator<Item = String>) {
    for finding in findings.lines() {
        match finding.split_once(": warning: ") {
            Some((place, warning)) => warn!(event = "policy_finding", "{place}: {warning}"),
            None => error!(event = "policy_finding", "{finding}"),
        }
    }
    for warning in about_all {
        warn!(event = "policy_finding", "{}", warning.trim_start_matches("warning: "));
    }
}

fn names(texts: &Texts) -> Vec<String> {
    texts.names().map(ToOwned::to_owned).collect()
}

/// The first files of a policy.
fn in_short(files: &[String]) -> String {
    match files.len().checked_sub(MAX_NAMES) {
        Some(more @ 1..) => format!("{} and {more} more", files[..MAX_NAMES].join(", ")),
        _ => files.join(", "),
    }
}
