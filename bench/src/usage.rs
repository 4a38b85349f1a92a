//! The usage text.

/// Commands and their options.
pub(crate) const USAGE: &str = "\
usage: tidegate-bench COMMAND [OPTIONS]

  memory   decisions per second and bytes per key, beside peers and floors; then growth, half as far again
  growth   only the growth: bytes per key and pauses while a table fills
  attack   a bounded table under a flood of distinct keys
  redis    the store in Redis: processor time of server and client, commands, latency, bytes per key
  policy   finding the rule of a descriptor among few rules and many; loading many
  concurrency  a permit of a concurrency limiter, a shed request, the end of a window
  server   the daemon over each protocol, beside other servers: processor time, latency, memory
  gateway  the gateway beside reverse proxies: processor time, latency, memory of connections
  tiers    the layers before the store in Redis: decisions without it, keys that are not hot, eight nodes
  tower    the layer in front of axum, beside tower_governor: in process and over loopback
  overload goodput of real servers under overload, behind Tidegate and other limiters; writes docs/overload.md
  list     the names --only can choose from

  --keys N,N,..   memory: how many keys [1,1000000,10000000]; growth, attack: how far;
                  redis [100000]; server [1000000]; tiers [10000]
  --rounds N      memory, redis, server, gateway, tiers: interleaved rounds, medians of them are reported [5, tiers 3];
                  overload: minutes of E3 [60]
  --millis N      memory, redis, server, gateway, tiers: length of one measurement [150, 1000, 800, 1500, 1000];
                  overload: of a cell of E1 and E4, without the five seconds before [15000]
  --only A,B,..   memory, growth, redis, server, gateway, tiers: only names that contain one of these
                  overload: experiments, as E1,E4; E1P is E1 with backend P
  --max-mib N     attack: the bound of the table [256]
  --again         overload: measures cells again that are in target/bench/overload
  --quick         a smoke run of seconds
  --out FILE      where the JSON goes [target/bench/COMMAND.json]";
