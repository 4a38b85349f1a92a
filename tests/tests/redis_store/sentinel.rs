//! A primary with sentinels, and servers that share the work: if any of them fails, a request is
//! decided or told why not, and no limit admits too much.

mod failover;
mod split;
