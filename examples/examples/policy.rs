//! Limits from a policy: load it, decide by it, replace it at run time.

use tidegate::Verdict;
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::store::memory::MemoryStore;

const POLICY: &str = "
domain: shop
descriptors:
  - key: customer
    limits:
      - {name: second, rate: 5/s, shadow: {rate: 2/s}}
      - {name: day, rate: 1000/day}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = PolicyLimiter::in_memory(load(POLICY)?)?;
    for number in 1..=7 {
        let answer = check(&limiter, "alice")?;
        let verdict = if answer.is_allowed() { "allowed" } else { "denied" };
        println!("request {number}: {verdict}, retry after {:?}", answer.retry_after());
    }

    // The shadow counts what half the rate would have denied, and denies nothing.
    let policy = limiter.policy();
    let limits = policy.domain("shop").map(|domain| domain.rules()[0].limits());
    let shadow = limits.and_then(|limits| limits[0].shadow());
    println!("beside it: {:?}", shadow.map(|shadow| shadow.agreement()));

    // A higher rate from now on; alice's used share stays used.
    limiter.replace(load(&POLICY.replace("rate: 5/s", "rate: 50/s"))?);
    println!("after the change: {}", check(&limiter, "alice")?.is_allowed());
    Ok(())
}

fn load(text: &str) -> Result<Policy, String> {
    let loaded = Policy::load(&[("shop.yaml", text)], Merging::Refuse);
    loaded.policy.ok_or(loaded.findings)
}

fn check(
    limiter: &PolicyLimiter<MemoryStore>,
    customer: &str,
) -> Result<Verdict, tidegate::policy::CheckError> {
    let entries = [Entry { key: "customer", value: customer }];
    let descriptors = [Descriptor::new(&entries)];
    limiter.check_now(&Request { domain: "shop", descriptors: &descriptors, hits: None })
}
