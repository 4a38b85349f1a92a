//! A primary that sentinels watch, and servers that share the work: whoever fails, a request is
//! decided or told why not, and no limit admits too much.

mod failover;
mod split;
