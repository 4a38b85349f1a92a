//! A request from the command line, and its decision.

use std::borrow::Cow;

use tidegate::concurrency::Class;
use tidegate::policy::{
    CheckError, Descriptor, Domain, Entry, HttpRequest, Merging, Mode, Policy, PolicyLimiter,
    Request, Source,
};
use tidegate::store::Store;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::{Clock, Verdict};

use crate::args::DecisionArgs;
use crate::secret::enforce_secret_of;

/// The action on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Charge the request and report the decision.
    Check,
    /// Report what would be decided, and why, without a charge.
    Explain,
}

/// The decision with its reasons.
#[derive(Debug)]
pub(crate) struct Findings {
    /// The descriptors of the request, in the order of the answer.
    pub(crate) descriptors: Vec<Vec<(String, String)>>,
    /// Number of entries of each descriptor that match a rule.
    pub(crate) depths: Vec<usize>,
    pub(crate) verdict: Verdict,
    /// The class of an HTTP request and the concurrency limiter of its route, in words.
    pub(crate) route: Option<String>,
}

/// A request as the policy's rules read it.
#[derive(Debug, Default)]
struct Read {
    descriptors: Vec<Vec<(String, String)>>,
    class: Option<Class>,
    route: Option<String>,
}

impl DecisionArgs {
    /// Decides the request, or returns the reason why it cannot be decided.
    pub(crate) fn ask(&self, wish: Wish) -> Result<Findings, String> {
        let policy = self.policy()?;
        let domain = self.domain(&policy)?;
        let Read { descriptors, class, route } = self.read(&policy, &domain)?;
        if descriptors.is_empty() {
            let route = route.map_or(String::new(), |route| format!("; {route}"));
            return Err(format!(
                "no rule of `requests` makes a descriptor for this request{route}"
            ));
        }
        let borrowed: Vec<Vec<Entry<'_>>> = descriptors.iter().map(|it| entries(it)).collect();
        let side = |entries| Descriptor { class, ..Descriptor::new(entries) };
        let sides: Vec<Descriptor<'_>> = borrowed.iter().map(|entries| side(entries)).collect();
        let request = Request { domain: &domain, descriptors: &sides, hits: self.hits };
        let depth = |entries: &Vec<Entry<'_>>| policy.domain(&domain).map(|it| it.depth(entries));
        let depths = borrowed.iter().map(|entries| depth(entries).unwrap_or(0)).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        let verdict = runtime.block_on(self.answer(policy.clone(), &request, wish))?;
        Ok(Findings { descriptors, depths, verdict, route })
    }

    fn policy(&self) -> Result<Policy, String> {
        let merging = if self.merge { Merging::Allow } else { Merging::Refuse };
        let source = Source::new(self.config.iter().cloned(), merging);
        let loaded = source.load().map_err(|error| error.to_string())?;
        loaded.policy.ok_or(loaded.findings)
    }

    /// The given domain, or the only one.
    fn domain(&self, policy: &Policy) -> Result<String, String> {
        let mut names: Vec<&str> = policy.domains().map(|domain| domain.name()).collect();
        names.sort_unstable();
        match (&self.domain, &names[..]) {
            (Some(name), names) if names.contains(&name.as_str()) => Ok(name.clone()),
            (Some(name), names) => {
                Err(format!("unknown domain {name:?}; the policy has {}", names.join(", ")))
            }
            (None, [only]) => Ok((*only).to_owned()),
            (None, names) => Err(format!("--domain is required: one of {}", names.join(", "))),
        }
    }

    fn read(&self, policy: &Policy, domain: &str) -> Result<Read, String> {
        let Some(text) = &self.request else {
            let descriptors: Result<_, String> =
                self.descriptor.iter().map(|text| descriptor(text)).collect();
            return Ok(Read { descriptors: descriptors?, ..Read::default() });
        };
        let Some((method, path)) = text.split_once(' ') else {
            return Err(format!("expected a request such as 'GET /v1/users', found {text:?}"));
        };
        let headers: Result<Vec<(&str, &str)>, String> = self
            .headers
            .iter()
            .map(|header| {
                let wrong =
                    || format!("expected a header such as 'x-api-key: k1', found {header:?}");
                let (name, value) = header.split_once(':').ok_or_else(wrong)?;
                Ok((name.trim(), value.trim()))
            })
            .collect();
        let (headers, path) = (headers?, path.trim());
        let request =
            HttpRequest { method, path, host: None, headers: &headers, peer: Some(self.peer) };
        let Some(domain) = policy.domain(domain) else { return Ok(Read::default()) };
        let owned = |(key, value): &(&str, Cow<'_, str>)| ((*key).to_owned(), value.to_string());
        let described = domain.requests().describe(&request);
        let described = described
            .map_err(|error| format!("the daemon refuses this request with 400: {error}"))?;
        let name = domain.classes().header_read();
        let of_class = headers
            .iter()
            .filter(|(known, _)| name.is_some_and(|name| name.eq_ignore_ascii_case(known)));
        let values = of_class.map(|(_, value)| value.as_bytes());
        let class = domain.class_of_request(&described, values, Some(self.peer));
        Ok(Read {
            descriptors: described.descriptors().map(|it| it.iter().map(owned).collect()).collect(),
            class: Some(class),
            route: route(domain, class, described.protect()),
        })
    }

    async fn answer(
        &self,
        policy: Policy,
        request: &Request<'_>,
        wish: Wish,
    ) -> Result<Verdict, String> {
        let secret = enforce_secret_of(self.enforce_secret_file.as_ref())?;
        if self.store == "memory" {
            let limiter = PolicyLimiter::in_memory(policy).map_err(|error| error.to_string())?;
            limiter.set_enforce_secret(secret);
            return ask(&limiter, request, wish).await.map_err(|error| error.to_string());
        }
        let config = RedisConfig::new(&self.store).map_err(|error| error.to_string())?;
        let store = RedisStore::connect(config).await.map_err(|error| error.to_string())?;
        let limiter = PolicyLimiter::new(policy, store, Clock::default());
        limiter.set_enforce_secret(secret);
        ask(&limiter, request, wish).await.map_err(|error| error.to_string())
    }
}

/// The class of a request and the concurrency limiter of its route, in words.
fn route(domain: &Domain, class: Class, named: Option<&str>) -> Option<String> {
    let class = domain.classes().name(class).map(|name| format!("class {name}"));
    let protection = domain.protection(named).map(|it| match it.mode() {
        Mode::Shadow => format!("protected by {}, in shadow mode", it.name()),
        _ => format!("protected by {}", it.name()),
    });
    let words: Vec<String> = class.into_iter().chain(protection).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

async fn ask<S: Store>(
    limiter: &PolicyLimiter<S>,
    request: &Request<'_>,
    wish: Wish,
) -> Result<Verdict, CheckError> {
    match wish {
        Wish::Explain => limiter.explain(request).await,
        Wish::Check => limiter.check(request).await,
    }
}

fn entries(descriptor: &[(String, String)]) -> Vec<Entry<'_>> {
    descriptor.iter().map(|(key, value)| Entry { key, value }).collect()
}

/// Reads `key=value,key=value`, in which `\,` is a comma.
pub(crate) fn descriptor(text: &str) -> Result<Vec<(String, String)>, String> {
    let (mut entries, mut entry) = (Vec::new(), String::new());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => entries.push(std::mem::take(&mut entry)),
            '\\' => entry.push(letters.next().unwrap_or('\\')),
            other => entry.push(other),
        }
    }
    entries.push(entry);
    let pair = |entry: &String| match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("expected a descriptor such as user=bob,path=/login, found {text:?}")),
    };
    entries.iter().map(pair).collect()
}
