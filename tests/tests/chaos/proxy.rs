//! The proxy that breaks connections does what it is told, so that what is built on it means something.

use std::time::Duration;

use redis::{Client, Connection, RedisResult};
use tidegate_tests::fault_proxy::{Fault, FaultProxy};
use tidegate_tests::servers::{RedisServer, comes_true};
use tokio::time::Instant;

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// What a connection waits for a reply.
const WAIT: Duration = Duration::from_millis(300);

struct World {
    _redis: RedisServer,
    proxy: FaultProxy,
}

impl World {
    fn start() -> Self {
        let redis = RedisServer::start();
        let proxy = FaultProxy::start(redis.port());
        Self { _redis: redis, proxy }
    }

    fn connection(&self) -> Connection {
        let client = Client::open(self.proxy.url()).expect("an address");
        let connection = client.get_connection().expect("a server");
        connection.set_read_timeout(Some(WAIT)).expect("a time");
        connection
    }
}

fn ping(connection: &mut Connection) -> RedisResult<String> {
    redis::cmd("PING").query(connection)
}

#[test]
fn bytes_pass_without_a_fault() {
    let world = World::start();
    let mut connection = world.connection();
    assert_eq!(ping(&mut connection).as_deref(), Ok("PONG"));
    // As long as several pieces.
    let long = "x".repeat(200_000);
    let answer: String = redis::cmd("ECHO").arg(&long).query(&mut connection).expect("an answer");
    assert!(answer == long, "{} of {} bytes", answer.len(), long.len());
    assert_eq!(world.proxy.accepted(), 1);
}

#[test]
fn late_replies_come_and_come_late() {
    let world = World::start();
    let mut connection = world.connection();
    connection.set_read_timeout(Some(TIMEOUT)).expect("a time");
    world.proxy.set(Fault::Late { percent: 100, by: WAIT });
    let start = Instant::now();
    assert_eq!(ping(&mut connection).as_deref(), Ok("PONG"));
    assert!(start.elapsed() >= WAIT, "{:?}", start.elapsed());
}

#[test]
fn bytes_on_their_way_do_not_hold_up_others() {
    let world = World::start();
    let mut connection = world.connection();
    connection.set_read_timeout(Some(TIMEOUT)).expect("a time");
    world.proxy.set_round_trip(WAIT.as_millis() as u64);
    let start = Instant::now();
    for _ in 0..100 {
        connection.send_packed_command(&redis::cmd("PING").get_packed_command()).expect("sent");
    }
    for _ in 0..100 {
        assert_eq!(connection.recv_response(), Ok(redis::Value::SimpleString("PONG".into())));
    }
    let took = start.elapsed();
    assert!(took >= WAIT - Duration::from_millis(1), "{took:?}");
    // One after the other, a hundred round trips take 30 s.
    assert!(took < 50 * WAIT, "{took:?}");
}

#[test]
fn held_bytes_arrive_in_the_end_and_lost_bytes_never() {
    for (fault, comes) in [(Fault::Hold, true), (Fault::Lose, false)] {
        let world = World::start();
        let mut connection = world.connection();
        world.proxy.set(fault);
        let mut words = redis::cmd("SET");
        words.arg("key").arg("value");
        assert!(words.exec(&mut connection).is_err(), "{fault:?}: nothing is answered");
        world.proxy.set(Fault::None);
        let is_there = || {
            let value: Option<String> =
                redis::cmd("GET").arg("key").query(&mut world.connection()).expect("an answer");
            value.is_some()
        };
        let patience = if comes { TIMEOUT } else { Duration::ZERO };
        assert_eq!(comes_true(patience, is_there), comes, "{fault:?}");
    }
}

#[test]
fn broken_connections_say_so_at_once_and_new_ones_work() {
    for fault in [Fault::Reset, Fault::HalfClose, Fault::Truncate] {
        let world = World::start();
        let mut connection = world.connection();
        connection.set_read_timeout(Some(TIMEOUT)).expect("a time");
        world.proxy.set(fault);
        let start = Instant::now();
        let error = ping(&mut connection).expect_err("it is broken");
        assert!(start.elapsed() < TIMEOUT, "{fault:?}: {error}");
        assert!(error.is_connection_dropped() || error.is_io_error(), "{fault:?}: {error}");
        world.proxy.set(Fault::None);
        assert_eq!(ping(&mut world.connection()).as_deref(), Ok("PONG"), "{fault:?}");
    }
}
