//! Other people's programs as they are, in front of the daemon or asking it.

mod bypass;
mod envoy;
mod failed_logins;
mod gateway;
mod openapi;
mod outage;
mod paths;
mod proxies;
mod redis_clients;
mod reserve;
mod storm;
mod wall_clock;
