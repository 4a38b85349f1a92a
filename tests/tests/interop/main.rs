//! Other people's programs as they are, in front of the daemon or asking it.

mod envoy;
mod openapi;
mod outage;
mod proxies;
mod redis_clients;
mod storm;
