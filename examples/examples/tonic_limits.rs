//! tonic with one limit per client for all nodes, in Redis.
//!
//! Needs a Redis: `cargo run -p tidegate-examples --features redis,tower --example tonic_limits -- \
//! redis://127.0.0.1:6379`

use std::error::Error;

use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::{Limit, Limiter, Rate};
use tidegate_tower::{ClientIp, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (_reporter, service) = tonic_health::server::health_reporter();

    // What a service needs.
    let store = RedisStore::connect(RedisConfig::new(&url)?.namespace("tonic_limits")).await?;
    let limit = Limit::token_bucket(Rate::per_minute(3)).build()?;
    let limiter = Limiter::builder().limit("per client", limit).shared(store)?;
    let layer = RateLimitLayer::limit(limiter.clone()).identify(ClientIp::peer());
    let server = Server::builder().layer(layer).add_service(service);

    limiter.reset("127.0.0.1").await?;
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for number in 1..=4 {
        let answer = client.check(HealthCheckRequest { service: String::new() }).await;
        match answer {
            Ok(_) => println!("call {number}: served"),
            Err(status) => {
                let wait = status.metadata().get("grpc-retry-pushback-ms");
                println!("call {number}: {:?}, retry after {wait:?} ms", status.code());
                assert_eq!((number, status.code()), (4, tonic::Code::ResourceExhausted));
            }
        }
    }
    Ok(())
}
