//! One limit for each API key, and a 429 with an exact `Retry-After`.

use std::error::Error;
use std::time::Duration;

use tidegate::verdict::whole_seconds;
use tidegate::{Limit, Limiter, Rate, Verdict};

struct Response {
    status: u16,
    /// Whole seconds, for the header.
    retry_after: Option<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    // Ten per minute for each key, with a burst of three.
    let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(10)).burst(3).build()?);

    for (api_key, expected) in [
        ("alice", 200),
        ("alice", 200),
        ("alice", 200),
        ("alice", 429),
        ("bob", 200), // has a bucket of his own
    ] {
        let response = handle(&limiter, api_key);
        match response.retry_after {
            None => println!("{api_key:>5}: {}", response.status),
            Some(secs) => println!("{api_key:>5}: {}, Retry-After: {secs}", response.status),
        }
        assert_eq!(response.status, expected);
    }

    // The exact wait is slightly below 6 s by now. The header has whole seconds, rounded up: a client
    // that retries too early would be denied again.
    let exact = limiter.peek("alice", 1).retry_after().ok_or("alice is over her limit")?;
    println!("exactly: {exact:?}, in a header: {}", whole_seconds(exact));
    assert!(exact <= Duration::from_secs(6) && whole_seconds(exact) <= 6);
    assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
    assert_eq!(whole_seconds(Duration::from_micros(2_000_001)), 3);
    Ok(())
}

fn handle(limiter: &Limiter, api_key: &str) -> Response {
    let verdict = limiter.check(api_key);
    if verdict.is_allowed() {
        return Response { status: 200, retry_after: None };
    }
    Response { status: 429, retry_after: retry_after_header(&verdict) }
}

/// No header if no wait helps, because the cost is above the limit's capacity.
fn retry_after_header(verdict: &Verdict) -> Option<u64> {
    verdict.headers().retry_after()
}
