//! `POST /v1/check`: questions in JSON.

use std::collections::HashMap;

use hyper::StatusCode;
use serde::Deserialize;
use tidegate::policy::{Descriptor, Entry, Request};
use tidegate::{AlgorithmName, InvalidLimit, Limit, Op, Rate};
use tidegate_core::{Builder, UnknownAlgorithm};

use super::answer::{self, Told};
use super::{Reply, refusal};
use crate::gate::{Gate, Given};

/// Either a key and a limit that comes with it, or a domain of the policy and descriptors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    key: Option<String>,
    rate: Option<String>,
    burst: Option<u64>,
    algorithm: Option<String>,
    cost: Option<u64>,
    domain: Option<String>,
    descriptors: Option<Vec<Side>>,
}

/// A descriptor: an object of one entry, or a list of keys and values.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Side {
    Object(HashMap<String, String>),
    List(Vec<(String, String)>),
}

impl Side {
    fn entries(&self) -> Result<Vec<Entry<'_>>, String> {
        let entries: Vec<Entry<'_>> = match self {
            Self::Object(object) if object.len() > 1 => {
                let advice = "an object has no order: write a descriptor of several entries as a \
                              list of [key, value] pairs";
                return Err(advice.into());
            }
            Self::Object(object) => {
                object.iter().map(|(key, value)| Entry { key, value }).collect()
            }
            Self::List(list) => list.iter().map(|(key, value)| Entry { key, value }).collect(),
        };
        if entries.is_empty() { Err("a descriptor has no entries".into()) } else { Ok(entries) }
    }
}

/// Decides what a body asks.
pub(crate) async fn check(gate: &Gate, body: &[u8]) -> Reply {
    match ask(gate, body).await {
        Ok(reply) => reply,
        Err(why) => refusal(StatusCode::BAD_REQUEST, &why),
    }
}

async fn ask(gate: &Gate, body: &[u8]) -> Result<Reply, String> {
    let question: Question = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    match (&question.key, &question.domain) {
        (Some(key), None) => {
            let limit = question.limit()?;
            let op = Op::Take(question.cost());
            let given = Given { key: key.as_bytes(), limit: &limit, op };
            let decision = gate.charge(gate.now(), &given).await;
            let decision = decision.map_err(|error| error.to_string())?;
            let algorithm = question.algorithm()?;
            Ok(answer::given(&Told { name: "given", algorithm, limit, decision }))
        }
        (None, Some(domain)) => question.ask_policy(gate, domain).await,
        _ => Err("say key and rate, or domain and descriptors".into()),
    }
}

impl Question {
    fn cost(&self) -> u64 {
        self.cost.unwrap_or(1)
    }

    fn algorithm(&self) -> Result<AlgorithmName, String> {
        let Some(name) = &self.algorithm else { return Ok(AlgorithmName::TokenBucket) };
        name.parse().map_err(|unknown: UnknownAlgorithm| unknown.to_string())
    }

    fn limit(&self) -> Result<Limit, String> {
        if self.descriptors.is_some() {
            return Err("descriptors belong to a domain".into());
        }
        let rate = self.rate.as_deref().ok_or("a key needs a rate, such as 100/60s")?;
        let rate: Rate = rate.parse().map_err(|wrong: InvalidLimit| wrong.to_string())?;
        let builder = Builder::new(self.algorithm()?, rate);
        let builder = self.burst.map_or(builder, |burst| builder.burst(burst));
        builder.build().map_err(|wrong| wrong.to_string())
    }

    async fn ask_policy(&self, gate: &Gate, domain: &str) -> Result<Reply, String> {
        if self.rate.is_some() || self.burst.is_some() || self.algorithm.is_some() {
            return Err("the limits of a domain are in its policy".into());
        }
        let sides = self.descriptors.as_deref().unwrap_or_default();
        let sides: Result<Vec<Vec<Entry<'_>>>, String> = sides.iter().map(Side::entries).collect();
        let sides = sides?;
        let descriptors: Vec<Descriptor<'_>> =
            sides.iter().map(|entries| Descriptor::new(entries)).collect();
        let request = Request { domain, descriptors: &descriptors, hits: self.cost };
        let answer = gate.check(&request).await.map_err(|error| error.to_string())?;
        Ok(answer::of_policy(&answer))
    }
}
