//! Other people's programs as they are, in front of the daemon or asking it.

mod access_log;
mod bypass;
mod envoy;
mod failed_logins;
mod gateway;
mod large_bodies;
mod layers;
mod openapi;
mod outage;
mod paths;
mod proxies;
mod redis_clients;
mod reserve;
mod restart;
mod storm;
mod wall_clock;
