//! axum with limits by route and by API key from a policy file, which is reloaded when it changes.
//!
//! `cargo run -p tidegate-examples --features tower --example axum_limits`

use std::error::Error;
use std::fs;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tidegate::policy::PolicyLimiter;
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;

const POLICY: &str = "
domain: api
requests:
  rules:
    - path: '/reports/{any...}'
      descriptors: [{entries: [{key: reports_of, api_key: true}]}]
    - path: /login
      methods: [POST]
      descriptors: [{entries: [{key: login_to, header: x-account}]}]
descriptors:
  - {key: reports_of, rate: 2/min}
  - {key: login_to, rate: 1/h}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("tidegate-axum-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("policy.yaml");
    fs::write(&file, POLICY)?;

    // What a service needs.
    let limiter = PolicyLimiter::from_path(&file)?;
    let _watch = limiter.follow(&file, |refusal| eprintln!("{refusal}"))?;
    let app = Router::new()
        .route("/reports/{name}", get(async || "a report"))
        .route("/login", post(async || "welcome"))
        .layer(RateLimitLayer::policy(limiter.clone(), "api"));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let report = async |key: &str| {
        client.get(format!("{url}/reports/sales")).header("x-api-key", key).send().await
    };
    for expected in [200, 200, 429] {
        let response = report("k1").await?;
        println!("k1: {}, ratelimit: {:?}", response.status(), response.headers()["ratelimit"]);
        assert_eq!(response.status(), expected);
    }
    assert_eq!(report("k2").await?.status(), 200, "another key has a budget of its own");

    // The new numbers hold as soon as the file is replaced.
    let new = folder.join("policy.new");
    fs::write(&new, POLICY.replace("2/min", "1000/min"))?;
    fs::rename(&new, &file)?;
    let mut pause = tokio::time::interval(Duration::from_millis(10));
    let reloaded = async {
        while report("k3").await?.headers()["ratelimit-policy"] != "\"reports_of\";q=1000;w=60" {
            pause.tick().await;
        }
        Ok::<(), reqwest::Error>(())
    };
    tokio::time::timeout(Duration::from_secs(20), reloaded).await??;
    println!("reloaded");
    fs::remove_dir_all(&folder)?;
    Ok(())
}
