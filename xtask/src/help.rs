//! The text of `cargo xtask help`.

/// Tasks and their options.
pub(crate) const HELP: &str = "\
Developer tasks of Tidegate.

Usage: cargo xtask <task> [options]

  check       Formatting, lints, documentation, and each feature of `tidegate` alone.
  test        Every test: unit, property, doc and tidy tests, the schedule explorer, each example,
              and a short run of the benches. Installs what the tests need.
  package     Builds every package by itself, the published crates with the oldest supported Rust, the daemon and the
              library for every supported platform. Installs toolchains.
  campaign    The long run: oracle against engine, then mutation testing of the algorithms.
                --decisions N    decisions per algorithm (default 10000000)
                --skip-mutants   only the oracle
                --mutants-only   only mutation testing
  fuzz        Fuzzes every parser of client input, guided by coverage.
                --minutes N      for each (default 10)
                --only PARSER    one of fuzz/fuzz_targets
  chaos       Failures of real servers under load; writes docs/failures.md.
                --only F2        one row of the failure table; writes nothing
                --quick          takes seconds instead of minutes; writes nothing
  soak        The daemon under load for long, with changing keys, clients and policies.
                --minutes N      how long (default 30)
                --rate N         decisions per second (default 20000)
                --faults         in front of a Redis that fails once a minute (default rate 4000)
  differential
              The same requests to envoyproxy/ratelimit, which Go builds, and to Tidegate in its place.
                --requests N     how many (default 100000)
                --seed N         which (default 1)
                --stage TEXT     only settings whose name contains this
  bench       Measurements, also written as JSON under target/bench/.
                memory [args]    decisions per second and bytes per key, beside other crates
                growth [args]    only the growth: bytes per key and pauses while a table fills
                attack [args]    a flood of random keys against a bounded table
                redis [args]     the Redis store, beside scripts, transactions and redis-cell
                policy [args]    matching and loading of large policies
                concurrency [args]  permits of a concurrency limiter, shed requests
                server [args]    the daemon over each protocol, beside other servers
                gateway [args]   the gateway beside reverse proxies
                tiers [args]     cost and benefit of the layers in front of Redis
                tower [args]     the layer in front of axum, beside tower_governor
                hostile [args]   the p99 of normal clients beside each kind of hostile client
  help        This text.

Each task prints the commands it runs and stops at the first that fails.
`check` and `test` together are what .ci/run runs.";

/// Every task.
pub(crate) const TASKS: &str =
    "check, test, package, campaign, fuzz, chaos, soak, differential, bench, help";
