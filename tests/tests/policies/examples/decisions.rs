//! What the examples promise, in numbers.

use std::time::Duration;

use tidegate::policy::RequestOutcome;
use tidegate::{Span, Verdict};

use super::{Desk, binding};

#[test]
fn the_edge_counts_networks_and_lets_our_own_through() {
    let desk = Desk::open("edge.yaml");
    assert_eq!(desk.passing(201, &["client=192.0.2.1"]), 200);
    desk.wait(Span::from_secs(1));
    assert_eq!(desk.passing(101, &["client=192.0.2.1"]), 100);
    assert_eq!(desk.passing(150, &["client=2001:db8:0:1::1"]), 150);
    assert_eq!(desk.passing(51, &["client=2001:db8:0:1:2:3:4:5"]), 50, "the same /64");
    assert_eq!(desk.passing(200, &["client=2001:db8:0:2::1"]), 200, "another");
    assert_eq!(desk.passing(5_001, &["client=10.1.2.3"]), 5_000);
    assert_eq!(desk.passing(600, &["client=198.51.100.1"]), 600);
    assert_eq!(desk.passing(401, &["client=198.51.100.2"]), 400, "one office");
    assert_eq!(desk.passing(1_001, &["host=eu.cdn.example.com client=192.0.2.9"]), 1_000);
    assert_eq!(desk.passing(501, &["host=static.example.com client=192.0.2.9"]), 500);
}

#[test]
fn the_gateway_charges_a_key_and_its_route_or_neither() {
    let desk = Desk::open("gateway.yaml");
    let search = ["api_key=k", "api_key=k route=/v1/search"];
    assert_eq!(desk.passing(30, &search), 10, "ten a second, whatever the key has left");
    assert_eq!(desk.passing(91, &["api_key=k"]), 90, "the twenty that were denied cost nothing");
    let denied = desk.ask(&["api_key=k"]);
    assert_eq!(binding(&denied), Some("second"));
    let export = ["api_key=e", "api_key=e route=/v1/reports/7/export"];
    assert_eq!(desk.passing(6, &export), 5, "each costs twenty of a hundred");
    assert_eq!(desk.passing(6, &["api_key=anonymous"]), 5);
    assert_eq!(desk.passing(2, &["report=7"]), 1);
    desk.wait(Span::from_secs(60));
    assert_eq!(desk.passing(2, &["report=7"]), 1);
}

#[test]
fn a_service_limits_operations_and_lets_webhooks_wait() {
    let desk = Desk::open("service.yaml");
    assert_eq!(desk.passing(11, &["operation=place_order user=u"]), 10);
    assert_eq!(desk.passing(6, &["operation=sign_in device=d"]), 5);
    assert_eq!(desk.passing(4, &["operation=invite code=c"]), 3);
    assert_eq!(desk.ask(&["webhook=w"]).delay(), Duration::ZERO);
    assert_eq!(desk.passing(49, &["webhook=w"]), 49);
    assert_eq!(desk.ask(&["webhook=w"]).delay(), Duration::from_secs(5), "fifty are before it");
    assert!(!desk.ask(&["webhook=w"]).is_allowed());
    assert_eq!(desk.passing(103, &["webhook=acme"]), 102, "a partner");
    assert_eq!(desk.passing(103, &["webhook=other plan=partner"]), 102, "another");
    assert_eq!(desk.passing(500, &["webhook=other plan=internal"]), 500);
    assert_eq!(desk.passing(205, &["webhook=globex"]), 204);
    assert_eq!(desk.passing(500, &["webhook=status-page"]), 500);
    assert_eq!(desk.passing(3, &["payroll_run=p"]), 2);
    desk.wait(Span::from_secs(3 * 86_400));
    assert_eq!(desk.passing(3, &["payroll_run=p"]), 2, "the Sunday after New Year 2027");
}

#[test]
fn stripe_has_a_hundred_live_and_twenty_five_in_test_and_for_each_endpoint() {
    let desk = Desk::open("stripe.yaml");
    assert_eq!(desk.passing(101, &["mode=live account=a"]), 100);
    assert_eq!(desk.passing(26, &["mode=test account=a"]), 25);
    let one = ["mode=live account=b", "account=b endpoint=/v1/charges"];
    assert_eq!(desk.passing(30, &one), 25);
    assert_eq!(binding(&desk.ask(&one)), Some("endpoint"));
    let other = ["mode=live account=b", "account=b endpoint=/v1/customers"];
    assert_eq!(desk.passing(30, &other), 25);
    assert_eq!(
        desk.passing(51, &["mode=live account=b"]),
        50,
        "what endpoints denied cost nothing"
    );
    desk.wait(Span::from_secs(1));
    assert_eq!(desk.passing(101, &["mode=live account=a"]), 100);
}

#[test]
fn published_limits_hold_to_the_request() {
    let desk = Desk::open("published.yaml");
    assert_eq!(desk.passing(5_001, &["github_user=u"]), 5_000);
    assert_eq!(desk.passing(61, &["github_address=192.0.2.1"]), 60);
    assert_eq!(desk.passing(5_001, &["aws_account=a"]), 5_000);
    desk.wait(Span::from_millis(1));
    assert_eq!(desk.passing(11, &["aws_account=a"]), 10, "ten in a millisecond");
    assert_eq!(desk.passing(51, &["fifty=x"]), 50);
    assert_eq!(desk.passing(1_001, &["thousand=x"]), 1_000);
    desk.wait(Span::from_secs(3_600));
    assert_eq!(desk.passing(5_001, &["github_user=u"]), 5_000);
    assert_eq!(desk.passing(51, &["fifty=x"]), 50);
}

#[test]
fn a_thousand_users_of_one_address_do_not_block_one_another() {
    let desk = Desk::open("per_identity.yaml");
    for user in 0..1_000 {
        let descriptor = format!("user={user}");
        let passed = desk.passing(10, &[&descriptor, "address=192.0.2.1"]);
        assert_eq!(passed, 10, "user {user}");
    }
    let denied = desk.ask(&["user=7", "address=192.0.2.1"]);
    assert!(!denied.is_allowed());
    assert_eq!(binding(&denied), Some("each user"), "for what that one did");
    assert_eq!(desk.passing(21, &["anonymous_address=192.0.2.1"]), 20);
    assert_eq!(desk.passing(20_000, &["address=192.0.2.1"]), 10_000, "against floods");
}

#[test]
fn a_file_of_envoyproxy_means_the_same() {
    let desk = Desk::open("envoy.yaml");
    assert_eq!(desk.passing(21, &["remote_address=192.0.2.1"]), 20);
    assert_eq!(desk.passing(100, &["remote_address=203.0.113.7"]), 100);
    let partner = ["remote_address=192.0.2.1", "account=partner"];
    assert_eq!(desk.passing(1_001, &partner), 1_000, "replaces the address's");
    assert_eq!(desk.passing(6, &["path=/files/a"]), 6);
    assert_eq!(desk.passing(6, &["path=/files/b"]), 4, "one budget for all files");
    assert_eq!(desk.passing(501, &["database=reads"]), 500);
    assert_eq!(desk.passing(20, &["to_number=1"]), 20, "a shadow");
    assert_eq!(desk.passing(2, &["to_number=1 message_type=marketing"]), 1);
}

#[test]
fn a_rollout_goes_plan_by_plan_and_key_by_key() {
    let desk = Desk::open("rollout.yaml");
    assert_eq!(desk.passing(21, &["customer=c"]), 20);
    assert_eq!(desk.passing(201, &["customer=d plan=pro"]), 200);
    assert_eq!(desk.passing(1_001, &["customer=acme"]), 1_000);
    assert_eq!(desk.passing(51, &["customer=initech"]), 50);
    let held = (0..400).filter(|key| {
        let descriptor = format!("export={key}");
        desk.passing(6, &[&descriptor]) == 5
    });
    let held = held.count();
    assert!((70..130).contains(&held), "{held} of 400 keys are held back");
    assert_eq!(desk.passing(50, &["import=x"]), 50);
    assert_eq!(desk.passing(101, &["region=eu-west"]), 100);
    assert_eq!(desk.passing(101, &["region=us-east"]), 101);
    let policy = desk.limiter.policy();
    let domain = policy.domain("rollout").expect("its domain");
    let rule = domain.rules().iter().find(|rule| rule.path() == "customer").expect("its rule");
    let shadow = rule.limits()[0].shadow().expect("a limit beside");
    let counted = shadow.agreement();
    let all = counted.agree + counted.would_deny + counted.would_allow;
    assert_eq!(all, 21, "only of those who have neither plan nor override");
    assert!(counted.would_deny > 0 && counted.would_allow == 0, "{counted:?}");
}

/// What each limit says of an outage is what the tests of outages hold it to.
#[test]
fn an_outage_is_answered_limit_by_limit() {
    let desk = Desk::open("outage.yaml");
    assert_eq!(desk.passing(6, &["sign_in=bob"]), 5);
    assert_eq!(desk.passing(50, &["search=bob"]), 40);
    let policy = desk.limiter.policy();
    let rules = policy.domain("shop").expect("its domain").rules();
    let modes = rules.iter().map(|rule| rule.limits()[0].on_store_failure().as_str());
    assert_eq!(modes.collect::<Vec<_>>(), ["allow", "local", "deny"]);
}

/// In one process too, the bucket in front denies first, and the limit behind holds.
#[test]
fn a_hot_key_is_held_back_on_each_node() {
    let desk = Desk::open("hot_key.yaml");
    assert_eq!(desk.passing(600, &["tenant=acme"]), 50, "what one node lets through at once");
    desk.wait(Span::from_secs(1));
    let answer = desk.ask(&["tenant=acme"]);
    let left = |answer: &Verdict| answer.remaining();
    assert!(answer.is_allowed() && answer.parts().len() == 1);
    assert_eq!(left(&answer), 499, "of the limit behind: what was denied in front took nothing");
    assert_eq!(desk.passing(100, &["tenant=acme export=1"]), 20);
    // The limit of a whole platform, which memory need not divide.
    let answer = desk.ask(&["platform=all"]);
    assert_eq!(left(&answer), 399_999);
    let policy = desk.limiter.policy();
    let domain = policy.domain("platform").expect("its domain");
    let shards = domain.rules().iter().filter_map(|rule| rule.limits()[0].shards());
    assert_eq!(shards.map(|it| it.get()).collect::<Vec<_>>(), [8]);
}

#[test]
fn a_login_is_blocked_after_too_many_attempts() {
    let desk = Desk::open("login.yaml");
    assert_eq!(desk.passing(6, &["account=bob"]), 5);
    let denied = desk.ask(&["account=bob"]);
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(900)), "the log is full for longer");
    desk.wait(Span::from_secs(900));
    assert_eq!(desk.passing(6, &["account=bob"]), 5);
    assert_eq!(desk.passing(101, &["client=192.0.2.1"]), 100);
    desk.wait(Span::from_secs(86_399));
    assert_eq!(desk.passing(1, &["client=192.0.2.1"]), 0);
    desk.wait(Span::from_secs(1));
    assert_eq!(desk.passing(1, &["client=192.0.2.1"]), 1);
}

#[test]
fn a_failed_login_counts_and_a_successful_one_does_not() {
    let desk = Desk::open("failed_logins.yaml");
    let login = |status| {
        let permit = desk.acquire(&["login=bob"]).permit();
        permit.map(|permit| desk.settle(permit, RequestOutcome::status(status)).returned)
    };
    assert!((0..100).all(|_| login(200) == Some(1)));
    assert!((0..5).all(|_| login(401) == Some(0)));
    assert_eq!(login(200), None, "five have failed");
    desk.wait(Span::from_secs(900));
    assert_eq!(login(200), Some(1));
    let reader = desk.acquire(&["reader=bob"]).permit().expect("a thousand are free");
    assert_eq!(desk.settle(reader, RequestOutcome::status(304)).returned, 1);
}

#[test]
fn a_completion_costs_the_tokens_and_the_money_that_it_has_used() {
    let desk = Desk::open("llm.yaml");
    let complete = || desk.acquire(&["user=bob"]).permit().expect("within the limits");
    let outcome = RequestOutcome::status(200).costs(&[("tokens", 1_500), ("money", 75)]);
    let settled = desk.settle(complete(), outcome);
    assert_eq!((settled.settled, settled.returned), (2, 2_500 + 125));
    let outcome = RequestOutcome::status(200).costs(&[("tokens", 9_000), ("money", 450)]);
    let settled = desk.settle(complete(), outcome);
    assert_eq!((settled.settled, settled.booked), (2, 5_000 + 250));
    let settled = desk.settle(complete(), RequestOutcome::status(502).costs(&[("tokens", 0)]));
    assert_eq!((settled.settled, settled.returned), (2, 4_000 + 200));
    let stream = desk.acquire(&["stream=bob"]).permit().expect("within the limits");
    assert_eq!(desk.settle(stream, RequestOutcome::cancelled()).returned, 4_000);
}

#[test]
fn a_user_runs_twenty_requests_at_once() {
    let desk = Desk::open("concurrency.yaml");
    let (user, batch) = (["user=bob"], ["user=batch"]);
    let held: Vec<_> = (0..25).filter_map(|_| desk.acquire(&user).permit()).collect();
    assert_eq!(held.len(), 20);
    assert_eq!(desk.passing(81, &user), 80, "a denied request spends no unit");
    drop(held);
    assert_eq!((0..101).filter_map(|_| desk.acquire(&batch).permit()).count(), 100);
    let exports: Vec<_> = (0..3).filter_map(|_| desk.acquire(&["export=x"]).permit()).collect();
    assert_eq!(exports.len(), 2, "each takes two of four places");
}

/// A fleet of 100 places, 20 of which are kept for critical requests: the other classes together fill 80.
#[test]
fn ov_05_a_part_of_the_fleet_is_kept_for_critical_requests() {
    let desk = Desk::open("overload.yaml");
    let (other, critical) = (["fleet=all"], ["fleet=all plan=enterprise"]);
    let mut held: Vec<_> = (0..81).filter_map(|_| desk.acquire(&other).permit()).collect();
    assert_eq!(held.len(), 80);
    let denied = desk.acquire(&other);
    let verdict = denied.verdict();
    assert!(verdict.is_unavailable(), "503, not 429");
    assert_eq!(verdict.strictest().map(|part| part.name.to_owned()), Some("fleet~other".into()));
    assert_eq!(verdict.headers().retry_after(), Some(1));
    held.extend((0..21).filter_map(|_| desk.acquire(&critical).permit()));
    assert_eq!(held.len(), 100);
    assert!(!desk.acquire(&critical).is_granted() && !desk.acquire(&other).is_granted());
    drop(held);
    let held: Vec<_> = (0..101).filter_map(|_| desk.acquire(&critical).permit()).collect();
    assert_eq!(held.len(), 100, "without other requests, critical ones may have everything");
}
