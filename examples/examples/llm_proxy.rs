//! An LLM proxy: requests, tokens and money of a user, decided in one step. A request reserves the usual cost;
//! what the model has used is settled from its response.
//!
//! `cargo run -p tidegate-examples --features tower --example llm_proxy`

use std::error::Error;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::StatusCode;
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::store::memory::MemoryStore;
use tidegate_tower::{ActualCost, RateLimitLayer};
use tokio::net::TcpListener;

const POLICY: &str = "
domain: llm
requests:
  rules:
    - path: '/complete/{tokens}'
      descriptors: [{entries: [{key: user, api_key: true}]}]
descriptors:
  - key: user
    limits:
      - {name: requests, rate: 5/min}
      - {name: tokens, rate: 20000/day, cost: 4000, actual: {header: x-tokens}}
      - {name: money, rate: 1000/day, cost: 200, refund: [5xx], actual: {application: true}}
";

/// Asks the model. A real proxy forwards the request and reads `usage` from the response.
async fn complete(Path(tokens): Path<u64>) -> Response {
    if tokens == 0 {
        // The model used tokens before it failed; only the money is refunded.
        return (StatusCode::BAD_GATEWAY, [("x-tokens", "700")], "the model failed")
            .into_response();
    }
    let cost = ActualCost::of("money", tokens.div_ceil(20));
    ([("x-tokens", tokens.to_string())], axum::Extension(cost), "a completion").into_response()
}

/// Units of bob that are left under each limit.
async fn left(limiter: &PolicyLimiter<MemoryStore>) -> Result<Vec<u64>, Box<dyn Error>> {
    let entries = [Entry { key: "user", value: "bob" }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: "llm", descriptors: &descriptors, hits: None };
    let verdict = limiter.peek(&request).await?;
    Ok(verdict.parts().filter_map(|part| part.decision.map(|it| it.remaining)).collect())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    let limiter = PolicyLimiter::in_memory(loaded.policy.ok_or(loaded.findings)?)?;
    let app = Router::new()
        .route("/complete/{tokens}", post(complete))
        .layer(RateLimitLayer::policy(limiter.clone(), "llm"));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/complete", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let ask = async |tokens: u64| {
        let response =
            client.post(format!("{url}/{tokens}")).header("x-api-key", "bob").send().await?;
        let left = left(&limiter).await?;
        println!("{tokens:>6} tokens: {}, left {left:?}", response.status());
        Ok::<_, Box<dyn Error>>((response.status().as_u16(), left))
    };
    // Less than the 4,000 tokens that were reserved: the rest is returned.
    assert_eq!(ask(1_000).await?, (200, vec![4, 19_000, 950]));
    // More: the rest is booked.
    assert_eq!(ask(9_000).await?, (200, vec![3, 10_000, 500]));
    assert_eq!(ask(0).await?, (502, vec![2, 9_300, 500]));
    assert_eq!(ask(6_000).await?, (200, vec![1, 3_300, 200]));
    // A request needs 4,000 tokens: it is denied, and takes nothing from the other limits.
    assert_eq!(ask(10).await?, (429, vec![1, 3_300, 200]));
    Ok(())
}
