//! An independent parser of structured fields reads what is written.

use sfv::{BareItem, KeyRef, List, ListEntry, Parser};
use tidegate_core::{Algorithm, Builder, Op, Rate, State};

use super::*;

/// A limit that has decided something.
struct Asked {
    name: &'static str,
    limit: Limit,
    decision: Decision,
}

impl Asked {
    /// After `taken` units, one more is asked for.
    fn after(name: &'static str, limit: Builder, taken: u64, now: Timestamp) -> Self {
        let limit = limit.build().unwrap();
        let mut state = State::default();
        limit.decide(&mut state, now, Op::Force(taken));
        Self { name, limit, decision: limit.decide(&mut state, now, Op::Take(1)) }
    }

    fn item(&self, key_number: u64) -> Item<'_> {
        Item {
            name: self.name,
            limit: Some(&self.limit),
            decision: &self.decision,
            key_number,
            retry: None,
        }
    }
}

/// Name and parameters of every item.
fn read(field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(field).parse().unwrap_or_else(|error| panic!("{error}: {field}"));
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {field}") };
        let BareItem::String(name) = &item.bare_item else { panic!("no string in {field}") };
        let number = |(key, value): (&KeyRef, &BareItem)| {
            let value = value.as_integer().unwrap_or_else(|| panic!("no integer in {field}"));
            (key.as_str().to_owned(), value.into())
        };
        let parameters = item.params.iter().map(|(key, value)| number((key, value))).collect();
        (name.as_str().to_owned(), parameters)
    };
    list.iter().map(item).collect()
}

fn one(now: Timestamp, asked: &Asked) -> Headers {
    Headers::new(now, &[asked.item(0)], 0)
}

const NOW: Timestamp = Timestamp::from_secs(1_743_929_953);

/// Allowed responses carry them too.
#[test]
fn a_bucket_tells_capacity_refill_and_the_next_unit() {
    let limit = || Limit::token_bucket(Rate::per_minute(100));
    let fields = one(NOW, &Asked::after("default", limit(), 49, NOW));
    assert_eq!(fields.rate_limit_policy(), "\"default\";q=100;w=60");
    // Of the 50 that are missing, one is back after 600 ms.
    assert_eq!(fields.rate_limit(), "\"default\";r=50;t=1");
    assert_eq!(fields.retry_after(), None);
    let denied = one(NOW, &Asked::after("default", limit(), 100, NOW));
    assert_eq!(denied.rate_limit(), "\"default\";r=0;t=1");
    assert_eq!(denied.retry_after(), Some(1));
    let strict = Limit::gcra(Rate::per_hour(2)).burst(3);
    let strict = one(NOW, &Asked::after("strict", strict, 3, NOW));
    assert_eq!(strict.rate_limit_policy(), "\"strict\";q=3;w=5400");
    assert_eq!((strict.rate_limit(), strict.retry_after()), ("\"strict\";r=0;t=1800", Some(1_800)));
}

/// The vectors of the draft, with the wait of a window that has one key.
#[test]
fn limits_are_told_in_their_order() {
    let burst = Asked::after("burst", Limit::sliding_log(Rate::per_minute(100)), 100, NOW);
    let daily = Asked::after("daily", Limit::sliding_log(Rate::per_day(1_000)), 587, NOW);
    let fields = Headers::new(NOW, &[burst.item(1), daily.item(2)], 0);
    assert_eq!(fields.rate_limit_policy(), "\"burst\";q=100;w=60, \"daily\";q=1000;w=86400");
    assert_eq!(fields.rate_limit(), "\"burst\";r=0;t=60, \"daily\";r=412;t=86400");
    assert_eq!(fields.retry_after(), Some(60));
    let names: Vec<String> = read(fields.rate_limit()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["burst", "daily"]);
}

#[test]
fn older_fields_are_told_if_wanted() {
    let limit = Limit::sliding_log(Rate::new(1_000, Span::from_secs(47)));
    let asked = Asked::after("default", limit, 257, NOW);
    let pairs: Vec<_> = one(NOW, &asked).with_x_rate_limit().into_iter().collect();
    let expected = [
        ("ratelimit-policy", "\"default\";q=1000;w=47"),
        ("ratelimit", "\"default\";r=742;t=47"),
        ("x-ratelimit-limit", "1000"),
        ("x-ratelimit-remaining", "742"),
        ("x-ratelimit-reset", "1743930000"),
    ];
    assert_eq!(pairs, expected.map(|(name, value)| (name, value.to_owned())));
    let denied = Asked::after("default", limit, 1_000, NOW);
    let pairs: Vec<_> = one(NOW, &denied).into_iter().collect();
    assert_eq!(pairs.last(), Some(&("retry-after", "47".to_owned())));
    assert!(Headers::default().with_x_rate_limit().into_iter().next().is_none());
}

/// Later than the truth by a tenth and 5 s at most, never earlier, always the same.
#[test]
fn windows_send_no_client_back_too_soon_and_not_all_at_once() {
    for (window, most) in [(10, 1), (60, 5), (86_400, 5)] {
        let rate = Rate::new(3, Span::from_secs(window));
        for limit in [Limit::fixed_window(rate), Limit::sliding_window(rate)] {
            let asked = Asked::after("w", limit, 3, NOW);
            let truth = whole_seconds(asked.decision.retry_after().expect("denied for a while"));
            let wait = |whose| {
                let fields = Headers::new(NOW, &[asked.item(whose)], 0);
                let answer = read(fields.rate_limit());
                let wait = fields.retry_after().expect("denied");
                assert_eq!(answer[0].1[1], ("t".to_owned(), wait.cast_signed()));
                assert!((truth..=truth + most).contains(&wait), "{window}: {truth} {wait}");
                wait
            };
            let waits: Vec<u64> = (0..1_000).map(wait).collect();
            assert_eq!(waits, (0..1_000).map(wait).collect::<Vec<_>>());
            let most_at_once = (truth..=truth + most)
                .map(|second| waits.iter().filter(|wait| **wait == second).count())
                .max();
            // A second of jitter is rounded to one.
            assert!(most == 1 || most_at_once < Some(300), "{window}: {most_at_once:?}");
        }
    }
}

#[test]
fn a_key_is_sent_to_the_same_instant_however_often_it_asks() {
    let limit = Limit::fixed_window(Rate::per_minute(1));
    let until = |second: u64| {
        let now = Timestamp::from_secs(1_743_929_940 + second);
        let wait = one(now, &Asked::after("w", limit, 1, now)).retry_after().expect("denied");
        second + wait
    };
    assert!((0..60).all(|second| until(second) == until(0)));
    assert!((60..65).contains(&until(0)));
}

#[test]
fn no_wait_is_reported_to_a_request_that_none_helps() {
    let limit = Limit::fixed_window(Rate::per_minute(5)).build().unwrap();
    let decision = limit.decide(&mut State::default(), NOW, Op::Take(6));
    let fields = one(NOW, &Asked { name: "w", limit, decision });
    assert_eq!((fields.retry_after(), fields.rate_limit()), (None, "\"w\";r=5"));
    let idle = limit.decide(&mut State::default(), NOW, Op::Read(1));
    let fields = one(NOW, &Asked { name: "w", limit, decision: idle });
    assert_eq!(fields.rate_limit(), "\"w\";r=5");
}

#[test]
fn a_window_below_a_second_is_left_out() {
    let limit = Limit::token_bucket(Rate::per_second(100)).burst(50);
    let fields = one(NOW, &Asked::after("fast", limit, 50, NOW));
    assert_eq!(fields.rate_limit_policy(), "\"fast\";q=50");
    assert_eq!((fields.rate_limit(), fields.retry_after()), ("\"fast\";r=0;t=1", Some(1)));
}

#[test]
fn in_flight_limits_name_their_unit() {
    let limit = Limit::in_flight(20, Span::from_secs(30)).unwrap();
    let decision = limit.decide(&mut State::default(), NOW, Op::Take(1));
    let fields = one(NOW, &Asked { name: "inflight", limit, decision });
    assert_eq!(fields.rate_limit_policy(), "\"inflight\";q=20;qu=\"concurrent-requests\"");
}

/// Structured fields can express any name of a limit.
#[test]
fn every_name_can_be_read_back() {
    for (name, expected) in [
        ("per minute", "per minute"),
        ("a\"b\\c", "a\"b\\c"),
        ("caf\u{e9}\n\u{7f}", "caf___"),
        ("", ""),
        (&*"n".repeat(MAX_NAME + 1), &*"n".repeat(MAX_NAME)),
    ] {
        let Asked { limit, decision, .. } =
            Asked::after("", Limit::token_bucket(Rate::per_minute(2)), 0, NOW);
        let answer =
            Item { name, limit: Some(&limit), decision: &decision, key_number: 0, retry: None };
        let fields = Headers::new(NOW, &[answer], 0);
        assert_eq!(read(fields.rate_limit_policy())[0].0, expected);
        assert_eq!(read(fields.rate_limit())[0].0, expected);
    }
}

#[test]
fn numbers_stay_within_what_structured_fields_allow() {
    let limit = Limit::token_bucket(Rate::per_second(1)).burst(2).build().unwrap();
    let mut decision = limit.decide(&mut State::default(), NOW, Op::Take(1));
    (decision.limit, decision.remaining) = (u64::MAX, u64::MAX - 1);
    let fields = one(NOW, &Asked { name: "huge", limit, decision });
    let numbers = |field| read(field)[0].1[0].1;
    assert_eq!(numbers(fields.rate_limit_policy()), 999_999_999_999_999);
    assert_eq!(numbers(fields.rate_limit()), 999_999_999_999_999);
}

#[test]
fn the_limit_that_speaks_is_always_told() {
    let asked = Asked::after("some", Limit::token_bucket(Rate::per_minute(2)), 0, NOW);
    let denying =
        Asked { name: "last", ..Asked::after("", Limit::gcra(Rate::per_minute(2)), 1, NOW) };
    let mut answer = vec![asked.item(0); 20];
    answer.push(denying.item(0));
    let fields = Headers::new(NOW, &answer, 20);
    let items = read(fields.rate_limit());
    assert_eq!(items.len(), MAX_LISTED);
    assert_eq!(items[MAX_LISTED - 1].0, "last");
    assert_eq!(fields.retry_after(), Some(30));
    assert_eq!(read(Headers::new(NOW, &answer, 3).rate_limit_policy()).len(), MAX_LISTED);
}
