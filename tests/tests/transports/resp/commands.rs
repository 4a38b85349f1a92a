//! What is answered to each command.

use redis::Value;
use tidegate::Span;

use super::*;

#[test]
fn the_example_of_redis_cell_is_answered_as_documented() {
    let transport = Transport::open();
    let answer = "0 16 15 -1 2";
    assert_eq!(transport.cli(&["CL.THROTTLE", "user123", "15", "30", "60"]), answer);
    assert_eq!(transport.cli(&["cl.throttle", "another", "15", "30", "60", "1"]), answer);
}

/// Milliseconds to wait, the words after the key, the answer.
type Step = (u64, &'static str, [i64; 5]);

const STORIES: [(&str, &[Step]); 9] = [
    (
        "a burst of one is one and one more",
        &[
            (0, "1 1 10", [0, 2, 1, -1, 10]),
            (0, "1 1 10", [0, 2, 0, -1, 20]),
            (0, "1 1 10", [1, 2, 0, 10, 20]),
            (9_999, "1 1 10", [1, 2, 0, 1, 11]),
            (1, "1 1 10", [0, 2, 0, -1, 20]),
        ],
    ),
    (
        "a burst of none spaces strictly",
        &[
            (0, "0 1 2", [0, 1, 0, -1, 2]),
            (0, "0 1 2", [1, 1, 0, 2, 2]),
            (2_000, "0 1 2", [0, 1, 0, -1, 2]),
        ],
    ),
    (
        "a quantity of none asks only",
        &[
            (0, "1 1 1 0", [0, 2, 2, -1, 0]),
            (0, "1 1 1 2", [0, 2, 0, -1, 2]),
            (0, "1 1 1 0", [0, 2, 0, -1, 2]),
            (0, "1 1 1", [1, 2, 0, 1, 2]),
        ],
    ),
    (
        "what never fits has no time to retry, and shows what is there",
        &[
            (0, "15 30 60 17", [1, 16, 16, -1, 0]),
            (0, "15 30 60 6", [0, 16, 10, -1, 12]),
            (0, "15 30 60 17", [1, 16, 10, -1, 12]),
            (0, "15 30 60 9223372036854775807", [1, 16, 10, -1, 12]),
        ],
    ),
    (
        "a negative quantity gives back, never above full",
        &[
            (0, "15 30 60 10", [0, 16, 6, -1, 20]),
            (0, "15 30 60 -4", [0, 16, 10, -1, 12]),
            (0, "15 30 60 -100", [0, 16, 16, -1, 0]),
            (0, "15 30 60 -9223372036854775808", [0, 16, 16, -1, 0]),
            (0, "15 30 60 16", [0, 16, 0, -1, 32]),
            (0, "15 30 60", [1, 16, 0, 2, 32]),
        ],
    ),
    (
        "a denial changes nothing",
        &[
            (0, "4 1 1 5", [0, 5, 0, -1, 5]),
            (0, "4 1 1 5", [1, 5, 0, 5, 5]),
            (1_500, "4 1 1 5", [1, 5, 1, 4, 4]),
            (0, "4 1 1", [0, 5, 0, -1, 5]),
        ],
    ),
    (
        "other numbers go on from the same state",
        &[
            (0, "9 1 1 10", [0, 10, 0, -1, 10]),
            (0, "19 1 1", [0, 20, 9, -1, 11]),
            (0, "4 1 1", [1, 5, 0, 1, 5]),
        ],
    ),
    (
        "a rate too fast for redis-cell is kept exactly",
        &[(0, "0 1000000000000 1", [0, 1, 0, -1, 1]), (1, "0 1000000000000 1", [0, 1, 0, -1, 1])],
    ),
    ("the largest burst", &[(0, "3153599999 1 1", [0, 3_153_600_000, 3_153_599_999, -1, 1])]),
];

#[test]
fn redis_cell_is_answered_for_at_its_edges() {
    let transport = Transport::open();
    let mut client = transport.client();
    for (story, steps) in STORIES {
        for (number, (wait, words, expected)) in steps.iter().enumerate() {
            transport.clock.advance(Span::from_millis(*wait));
            let key = story.replace(' ', "_");
            let answer = numbers(&mut client, &format!("CL.THROTTLE {key} {words}"));
            assert_eq!(answer, Ok(expected.to_vec()), "{story}, step {number}: {words}");
        }
    }
}

#[test]
fn numbers_that_make_no_limit_are_refused_and_the_connection_goes_on() {
    let transport = Transport::open();
    let usage = "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> \
                 <period> [<quantity>]";
    let cell = |text: &str| format!("-Cell error: Store error: {text}");
    for (command, answer) in [
        ("CL.THROTTLE", usage.to_owned()),
        ("CL.THROTTLE k 1 1", usage.to_owned()),
        ("CL.THROTTLE k 1 1 1 1 1", usage.to_owned()),
        ("CL.THROTTLE k x 1 1", cell("Couldn't parse as integer: x")),
        ("CL.THROTTLE k 1 1 1 1.5", cell("Couldn't parse as integer: 1.5")),
        ("CL.THROTTLE k 1 0 1", cell("Zero rates are not supported")),
        ("CL.THROTTLE k 1 1 0", cell("Zero rates are not supported")),
        ("CL.THROTTLE k -1 1 1", "-ERR max_burst must not be negative".into()),
        ("CL.THROTTLE k 1 -1 1", "-ERR count must not be negative".into()),
        ("CL.THROTTLE k 1 1 -1", "-ERR period must not be negative".into()),
        ("CL.THROTTLE k 9223372036854775807 1 1", "-ERR burst must be between 1 and 2^32".into()),
        (
            "CL.THROTTLE k 1 1 9223372036854775807",
            "-ERR period must be between 1us and 10 years".into(),
        ),
        ("THROTTLE k 1 1", "-ERR wrong number of arguments for 'throttle' command".into()),
        ("THROTTLE k x 1 1", "-ERR invalid max_burst".into()),
        ("THROTTLE k 1 x 1", "-ERR invalid count_per_period".into()),
        ("THROTTLE k 1 1 x", "-ERR invalid period".into()),
        ("THROTTLE k 1 1 1 x", "-ERR invalid quantity".into()),
        ("THROTTLE k 1 1 1 -1", "-ERR negative quantity: -1".into()),
        ("THROTTLE k 0 1 1", "-ERR invalid rate limit parameters".into()),
        ("THROTTLE k 1 0 1", "-ERR invalid rate limit parameters".into()),
        ("THROTTLE k 1 1 -1", "-ERR invalid rate limit parameters".into()),
    ] {
        let reply = transport.tell(format!("{command}\r\nPING\r\n").as_bytes());
        assert_eq!(reply, format!("{answer}\r\n+PONG\r\n"), "{command}");
    }
}

#[test]
fn throttlecrab_is_answered_for_in_its_own_order() {
    let transport = Transport::open();
    let mut client = transport.client();
    for (command, answer) in [
        ("THROTTLE k 2 1 10", [1, 2, 1, 10, 0]),
        ("THROTTLE k 2 1 10 0", [1, 2, 1, 10, 0]),
        ("THROTTLE k 2 1 10", [1, 2, 0, 20, 0]),
        ("THROTTLE k 2 1 10", [0, 2, 0, 20, 10]),
        ("THROTTLE k 2 1 10 3", [0, 2, 0, 20, -1]),
        // The same state as redis-cell's, whose burst is one less.
        ("CL.THROTTLE k 1 1 10", [1, 2, 0, 10, 20]),
    ] {
        assert_eq!(numbers(&mut client, command), Ok(answer.to_vec()), "{command}");
    }
}

#[test]
fn deleting_a_key_lets_it_start_afresh() {
    let transport = Transport::open();
    let mut client = transport.client();
    for key in ["a", "b"] {
        let all = numbers(&mut client, &format!("CL.THROTTLE {key} 1 1 3600 2"));
        assert_eq!(all, Ok(vec![0, 2, 0, -1, 7_200]));
    }
    assert_eq!(words("DEL a b unknown").query(&mut client), Ok(2));
    assert_eq!(words("DEL a").query(&mut client), Ok(0));
    assert_eq!(numbers(&mut client, "CL.THROTTLE a 1 1 3600"), Ok(vec![0, 2, 1, -1, 3_600]));
}

#[test]
fn keys_are_any_bytes() {
    let transport = Transport::open();
    let mut client = transport.client();
    for key in [&b"\xff\xfe"[..], b"", b"\r\n", b"a b"] {
        let mut command = redis::cmd("CL.THROTTLE");
        command.arg(key).arg(0).arg(1).arg(60);
        let first: Vec<i64> = command.query(&mut client).unwrap();
        let second: Vec<i64> = command.query(&mut client).unwrap();
        assert_eq!((first[0], second[0]), (0, 1), "{}", key.escape_ascii());
    }
}

const POLICY: &str = "
domain: api
descriptors:
  - key: user
    limits:
      - name: per_minute
        rate: 3/min
        burst: 3
  - key: path
    rate: 1/s
    burst: 2
";

#[test]
fn a_policy_is_asked_by_its_descriptors() {
    let transport = Transport::open();
    transport.load(POLICY);
    let mut client = transport.client();
    type Answer = (i64, i64, i64, i64, i64, String);
    let mut ask =
        |text: &str| words(text).query::<Answer>(&mut client).map_err(|it| it.to_string());
    let named = |numbers: [i64; 5], name: &str| {
        let [limited, limit, remaining, retry, reset] = numbers;
        Ok((limited, limit, remaining, retry, reset, name.to_owned()))
    };
    let minute = "per_minute";
    assert_eq!(ask("TG.CHECK api user bob"), named([0, 3, 2, -1, 20_000], minute));
    assert_eq!(ask("tg.check api user bob COST 2"), named([0, 3, 0, -1, 60_000], minute));
    assert_eq!(ask("TG.CHECK api user bob"), named([1, 3, 0, 20_000, 60_000], minute));
    assert_eq!(ask("TG.CHECK api user ann cost 4"), named([1, 3, 3, -1, 0], minute));
    assert_eq!(ask("TG.CHECK api path /login").unwrap().1, 2);
    assert_eq!(ask("TG.CHECK api nothing here"), named([0, -1, -1, -1, 0], ""));
    assert_eq!(ask("TG.CHECK elsewhere user bob"), named([0, -1, -1, -1, 0], ""));
    for (wrong, why) in [
        ("TG.CHECK api user", "wrong number of arguments"),
        ("TG.CHECK api user bob COST", "wrong number of arguments"),
        ("TG.CHECK api user bob COST x", "COST must be a non-negative number"),
        ("TG.CHECK  user bob", "domain must not be empty"),
    ] {
        let reply = ask(wrong).unwrap_err();
        assert!(reply.contains(why), "{wrong}: {reply}");
    }
}

#[test]
fn a_client_of_redis_finds_what_it_expects() {
    let transport = Transport::open();
    for (command, answer) in [
        (&["PING"][..], "PONG"),
        (&["PING", "hello"], "hello"),
        (&["ECHO", "hello"], "hello"),
        (&["SELECT", "0"], "OK"),
        (&["SELECT", "1"], "ERR DB index is out of range"),
        (&["CONFIG", "GET", "save"], ""),
        (&["COMMAND", "COUNT"], "0"),
        (&["CLIENT", "SETNAME", "me"], "OK"),
        (&["CLIENT", "GETNAME"], ""),
        (&["QUIT"], "OK"),
        (&["HELLO", "4"], "NOPROTO unsupported protocol version"),
        (&["AUTH", "default", "x"], "OK"),
        (&["GET", "a", "b"], "ERR unknown command 'GET', with args beginning with: 'a' 'b'"),
        (&["CLIENT", "KILL"], "ERR unknown subcommand 'KILL'. Try CLIENT HELP."),
    ] {
        assert_eq!(transport.cli(command), answer, "{command:?}");
    }
    assert!(transport.cli(&["INFO"]).contains("redis_version:"));
    let greeting = transport.cli(&["-3", "HELLO"]);
    assert!(greeting.contains("proto") && greeting.contains('3'), "{greeting}");
    let mut client = transport.client_of("?protocol=resp3");
    let greeting: Value = words("HELLO 3").query(&mut client).unwrap();
    assert!(matches!(greeting, Value::Map(_)), "{greeting:?}");
    assert_eq!(numbers(&mut client, "CL.THROTTLE k 15 30 60"), Ok(vec![0, 16, 15, -1, 2]));
}

#[test]
fn a_password_is_asked_for_first() {
    let password = Some("sesame".to_owned());
    let transport = Transport::with(&Settings { password, ..settings() });
    let refused = "-NOAUTH Authentication required.\r\n";
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(transport.tell(b"CL.THROTTLE k 15 30 60\r\nPING\r\n"), refused.repeat(2));
    assert_eq!(
        transport.tell(b"AUTH sesam\r\nAUTH sesame2\r\nAUTH you sesame\r\n"),
        wrong.repeat(3)
    );
    assert_eq!(transport.tell(b"AUTH sesame\r\nPING\r\n"), "+OK\r\n+PONG\r\n");
    assert!(transport.tell(b"HELLO 3\r\n").starts_with("-NOAUTH HELLO"));
    assert!(transport.tell(b"HELLO 2 AUTH default sesame\r\nPING\r\n").ends_with("+PONG\r\n"));
    let url = format!("redis://:sesame@{}/", transport.address());
    let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
    assert_eq!(words("PING").query(&mut client), Ok("PONG".to_owned()));
}

#[test]
fn answers_can_be_turned_off() {
    let transport = Transport::open();
    let reply = transport.tell(b"CLIENT REPLY SKIP\r\nPING a\r\nPING b\r\n");
    assert_eq!(reply, "$1\r\nb\r\n");
    let reply = transport.tell(b"CLIENT REPLY OFF\r\nPING a\r\nCLIENT REPLY ON\r\nPING b\r\n");
    assert_eq!(reply, "+OK\r\n$1\r\nb\r\n");
}

/// What a transaction cannot hold discards it, and nothing is charged.
#[test]
fn a_transaction_is_carried_out_once_or_not_at_all() {
    let transport = Transport::open();
    let tell = |bytes: &[u8]| transport.tell(bytes).replace("\r\n", " ");
    let throttle = "CL.THROTTLE k 1 1 3600\r\n";
    assert_eq!(
        tell(format!("MULTI\r\n{throttle}{throttle}PING\r\nEXEC\r\n").as_bytes()),
        "+OK +QUEUED +QUEUED +QUEUED *3 *5 :0 :2 :1 :-1 :3600 *5 :0 :2 :0 :-1 :7200 +PONG "
    );
    let refused = tell(b"MULTI\r\nDEL k\r\nINFO\r\nEXEC\r\nEXEC\r\n");
    let expected = "+OK +QUEUED -ERR INFO is not allowed in a transaction: send it before MULTI \
                    -EXECABORT Transaction discarded because of previous errors. -ERR EXEC without \
                    MULTI ";
    assert_eq!(refused, expected);
    let unknown = tell(b"MULTI\r\nDEL k\r\nGET k\r\nEXEC\r\n");
    assert!(unknown.contains("-ERR unknown command 'GET'") && unknown.contains("-EXECABORT"));
    assert_eq!(
        tell(b"MULTI\r\nDEL k\r\nDISCARD\r\nDISCARD\r\n"),
        "+OK +QUEUED +OK -ERR DISCARD without MULTI "
    );
    assert_eq!(tell(b"MULTI\r\nMULTI\r\nEXEC\r\n"), "+OK -ERR MULTI calls can not be nested *0 ");
    // Nothing of what was discarded was carried out.
    assert_eq!(tell(b"CL.THROTTLE k 1 1 3600 0\r\n"), "*5 :0 :2 :0 :-1 :7200 ");
}

#[test]
fn a_transaction_is_bounded() {
    let transport = Transport::open();
    let queued = "PING\r\n".repeat(513);
    let reply = transport.tell(format!("MULTI\r\n{queued}EXEC\r\n").as_bytes());
    assert_eq!(reply.matches("+QUEUED").count(), 512);
    let bound = "-ERR a transaction has at most 512 commands of 65536 bytes together";
    assert!(reply.contains(bound) && reply.contains("-EXECABORT"), "{reply}");
}
