//! Every conformance case that asks for nothing but checks, as the protocol has nothing else.

use tidegate::{Clock, ManualClock};
use tidegate_server::{RateLimitService, Settings};
use tidegate_tests::conformance::{Reply, run_case, transport_cases};
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::rls::RateLimitRequest;

use super::serve_grpc;

#[test]
fn every_case_holds_over_grpc() {
    let mut failures = Vec::new();
    let cases = transport_cases();
    for (case, policy) in &cases {
        let clock = ManualClock::at(case.start());
        let service = RateLimitService::with_clock(Clock::from(clock.clone())).expect("memory");
        service.replace(policy.clone());
        let server = serve_grpc(&Settings::default(), &service);
        let mut client = GrpcClient::connect(server.grpc().expect("asked for"));
        let failure = run_case(case, &mut |question| {
            clock.set(question.now);
            match client.should_rate_limit(&RateLimitRequest::of(question)) {
                Ok(response) => response.reply(),
                Err(failed) => {
                    assert_eq!(failed.code, 2, "as every error of envoyproxy/ratelimit");
                    Reply::Failed(failed.text)
                }
            }
        });
        failures.extend(failure.err());
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}
