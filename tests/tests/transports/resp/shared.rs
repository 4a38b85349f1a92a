//! The transport in front of a store that keeps it waiting: a real Redis.

use std::io::BufRead;

use tidegate::store::redis::RedisConfig;
use tidegate_tests::servers::{RedisServer, wait_until};

use super::*;

fn service(redis: &RedisServer) -> RateLimitService {
    let config = RedisConfig::new(&redis.url()).expect("a valid address");
    let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
    RateLimitService::connect(config).unwrap_or_else(|error| panic!("{error}"))
}

fn transport(service: RateLimitService) -> Transport {
    let server = serve(&settings(), &service).unwrap_or_else(|error| panic!("{error}"));
    Transport { server, service, clock: ManualClock::new() }
}

#[test]
fn two_daemons_share_one_limit() {
    let redis = RedisServer::start();
    let (one, other) = (transport(service(&redis)), transport(service(&redis)));
    let (mut one, mut other) = (one.client(), other.client());
    let ask =
        |client: &mut redis::Connection| numbers(client, "CL.THROTTLE shared 9 1 3600").unwrap();
    for left in (0..5).rev() {
        assert_eq!(ask(&mut one)[..3], [0, 10, 2 * left + 1]);
        assert_eq!(ask(&mut other)[..3], [0, 10, 2 * left]);
    }
    assert_eq!(ask(&mut one)[0], 1);
    assert_eq!(ask(&mut other)[0], 1);
}

/// Answers of the store and of the transport itself take turns, and the bursts tell them apart.
#[test]
fn thousands_of_requests_at_once_are_answered_in_order() {
    const REQUESTS: usize = 3_000;
    let redis = RedisServer::start();
    let transport = transport(service(&redis));
    let mut socket = transport.connect();
    let mut reader = std::io::BufReader::new(socket.try_clone().unwrap());
    let writer = std::thread::spawn(move || {
        for number in 0..REQUESTS {
            let command = match number % 3 {
                0 => format!("ECHO {number}\r\n"),
                _ => format!("CL.THROTTLE k{number} {number} 1 3600\r\n"),
            };
            socket.write_all(command.as_bytes()).unwrap();
        }
        socket
    });
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    for number in 0..REQUESTS {
        if number % 3 == 0 {
            line();
            assert_eq!(line(), number.to_string());
        } else {
            let answer: Vec<String> = (0..6).map(|_| line()).collect();
            assert_eq!(answer[..3], ["*5", ":0", &format!(":{}", number + 1)]);
        }
    }
    writer.join().unwrap();
}

#[test]
fn a_half_closed_client_still_gets_its_replies() {
    let redis = RedisServer::start();
    let transport = transport(service(&redis));
    let asked = "CL.THROTTLE a 0 1 3600\r\nCL.THROTTLE a 0 1 3600\r\nPING\r\n";
    assert_eq!(
        transport.tell(asked.as_bytes()),
        "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n*5\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n+PONG\r\n"
    );
}

#[test]
fn answers_that_no_client_wants_are_left_out_in_order() {
    let redis = RedisServer::start();
    let transport = transport(service(&redis));
    let asked = "CLIENT REPLY SKIP\r\nCL.THROTTLE a 9 1 3600\r\nPING\r\nCLIENT REPLY OFF\r\n\
                 CL.THROTTLE a 9 1 3600\r\nCLIENT REPLY ON\r\nCL.THROTTLE a 9 1 3600 0\r\nQUIT\r\n";
    let reply = transport.tell(asked.as_bytes());
    assert!(reply.starts_with("+PONG\r\n+OK\r\n*5\r\n:0\r\n:10\r\n:8\r\n"), "{reply}");
    assert!(reply.ends_with("+OK\r\n"), "{reply}");
}

#[test]
fn limits_that_come_together_are_all_charged_or_none() {
    let redis = RedisServer::start();
    for transport in [Transport::open(), transport(service(&redis))] {
        let mut client = transport.client();
        let ask = "TG.THROTTLE {t}a 9 1 3600 4 {t}b 4 1 3600 2";
        let mut reply = || -> (i64, Vec<i64>, Vec<i64>) { words(ask).query(&mut client).unwrap() };
        assert_eq!(reply(), (0, vec![0, 10, 6, -1, 14_400], vec![0, 5, 3, -1, 7_200]));
        assert_eq!(reply(), (0, vec![0, 10, 2, -1, 28_800], vec![0, 5, 1, -1, 14_400]));
        let (limited, one, other) = reply();
        assert_eq!((limited, one[2], other[2]), (1, 2, 1));
        let alone = numbers(&mut client, "CL.THROTTLE {t}a 9 1 3600 2").unwrap();
        assert_eq!(alone[..3], [0, 10, 0], "what was denied together was not charged");
    }
}

#[test]
fn a_store_that_is_away_is_answered_for_and_the_connection_goes_on() {
    let redis = RedisServer::start();
    let config = RedisConfig::new(&redis.url()).unwrap();
    let transport =
        transport(RateLimitService::connect(config.deadline(Duration::from_millis(250))).unwrap());
    let mut client = transport.client();
    assert!(numbers(&mut client, "CL.THROTTLE a 9 1 3600").is_ok());
    redis.kill();
    // Ten, and half more on the only node, of which a tenth was used: what cannot be undone is told.
    let reply = |client: &mut redis::Connection| numbers(client, "CL.THROTTLE a 9 1 3600").unwrap();
    assert_eq!((0..20).filter(|_| reply(&mut client)[0] == 0).count(), 13);
    let reset = words("DEL a").query::<i64>(&mut client).expect_err("it cannot be reset");
    assert!(reset.to_string().contains("the store"), "{reset}");
    assert_eq!(words("PING").query::<String>(&mut client).unwrap(), "PONG");
    redis.restart();
    wait_until("it decides again", TIMEOUT, || words("DEL a").query::<i64>(&mut client).is_ok());
}
