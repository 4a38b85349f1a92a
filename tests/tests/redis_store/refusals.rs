//! F12: a store that refuses is told from one that is unavailable, and both come back on their own.

mod corrupt;
mod overload;

use std::time::Duration;

use crate::client::{self, Client, LIMIT, UNITS, config};
use Misconfigured::{Authentication, OutOfMemory, Permission, ReadOnly};
use tidegate::store::{Misconfigured, StoreError};
use tidegate_tests::servers::{RedisServer, wait_until};

fn connected(server: &RedisServer) -> Client {
    let client = Client::connect(config(&server.url())).expect("a sound server");
    client.take("before").expect("a sound server");
    client
}

/// It says so until it is repaired, and then decides again.
fn is_refused_until(client: &Client, why: Misconfigured, server: &RedisServer, repair: &[&[&str]]) {
    for number in 0..3 {
        let error = client.take(&format!("refused:{number}")).expect_err("it may not decide");
        let StoreError::Misconfigured(what, _) = &error else { panic!("not {why:?}: {error}") };
        assert_eq!(*what, why, "{error}");
        assert!(!error.is_outage(), "an operator has to act: {error}");
        assert!(error.to_string().contains(&server.address()), "{error}");
        assert!(error.to_string().contains(why.advice()), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    repair.iter().for_each(|words| {
        server.command(words);
    });
    decides_again(client);
}

fn decides_again(client: &Client) {
    let mut number = 0;
    wait_until("the store decides again", LIMIT, || {
        number += 1;
        client.take(&format!("again:{number}")).is_ok()
    });
    client.decides("after");
}

#[test]
fn rights_that_are_taken_away() {
    let server = RedisServer::start();
    let client = connected(&server);
    for (takes, gives) in
        [("-evalsha", "+evalsha"), ("-set", "+set"), ("-time", "+time"), ("resetkeys", "~*")]
    {
        server.command(&["ACL", "SETUSER", "default", takes]);
        let repair: &[&[&str]] = &[&["ACL", "SETUSER", "default", gives]];
        is_refused_until(&client, Permission, &server, repair);
    }
}

#[test]
fn a_server_that_fills_up() {
    let server = RedisServer::start();
    let client = connected(&server);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    is_refused_until(&client, OutOfMemory, &server, &[&["CONFIG", "SET", "maxmemory", "0"]]);
}

#[test]
fn a_password_that_changes() {
    let server = RedisServer::start();
    let user = ["ACL", "SETUSER", "limiter", "on", ">old secret", "~*", "+@all"];
    server.command(&user);
    let url = format!("redis://limiter:old%20secret@{}", server.address());
    let client = Client::connect(config(&url)).expect("the password is right");
    server.command(&["ACL", "SETUSER", "limiter", "resetpass", ">new secret"]);
    // Who is connected stays so.
    client.take("connected").unwrap();
    server.command(&["CLIENT", "KILL", "USER", "limiter"]);
    wait_until("the connection is lost", LIMIT, || {
        client.take("lost").is_err_and(|error| !error.is_outage())
    });
    is_refused_until(&client, Authentication, &server, &[&user]);
}

#[test]
fn a_server_that_becomes_a_replica() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let client = connected(&server);
    (0..UNITS).for_each(|_| assert!(client.take("spent").is_ok()));
    assert!(!client.take("spent").unwrap().is_allowed());
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    wait_until("it is a replica", LIMIT, || server.info("role") == "slave");
    // Nothing can be written there; but what it has copied could still deny.
    wait_until("it is not asked any more", LIMIT, || {
        matches!(client.take("spent"), Err(StoreError::Misconfigured(ReadOnly, _)))
    });
    is_refused_until(&client, ReadOnly, &server, &[&["REPLICAOF", "NO", "ONE"]]);
}

/// However often it is asked meanwhile, whatever may be denied by a copy is not asked of it.
#[test]
fn a_replica_does_not_deny() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let client = connected(&server);
    (0..UNITS).for_each(|_| assert!(client.take("spent").is_ok()));
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    // There are no writes, so no refusal reveals it.
    let peek = || client.ask(&client::limits()[0], "spent", tidegate::Op::Read(1));
    wait_until("it is noticed", LIMIT, || {
        matches!(peek(), Err(StoreError::Misconfigured(ReadOnly, _)))
    });
}

#[test]
fn a_server_that_must_not_write_for_now() {
    let server = RedisServer::start();
    let client = connected(&server);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let repair: &[&[&str]] = &[&["CONFIG", "SET", "min-replicas-to-write", "0"]];
    is_refused_until(&client, ReadOnly, &server, repair);
}

#[test]
fn a_server_that_is_killed_is_away_and_not_misconfigured() {
    let server = RedisServer::start();
    let client = connected(&server);
    server.kill();
    for _ in 0..20 {
        let error = client.take("away").expect_err("there is no server");
        assert!(error.is_outage(), "{error}");
    }
    let error = client.take("away").unwrap_err();
    assert!(error.to_string().contains(&server.address()), "{error}");
    server.restart();
    decides_again(&client);
}

#[test]
fn a_server_that_hangs_is_away_within_the_deadline() {
    let server = RedisServer::start();
    let (deadline, limit) = (Duration::from_millis(20), client::limits()[0]);
    let config = config(&server.url()).deadline(deadline);
    let client = Client::connect(config).expect("a sound server");
    server.pause();
    let error = client.take("away").unwrap_err();
    assert_eq!(error, StoreError::Timeout);
    // Every answer comes within the deadline, with slack for a busy machine.
    for _ in 0..20 {
        let asked = client::ask(&client.store, &limit, "away", tidegate::Op::Take(1));
        let answered = async { tokio::time::timeout(deadline * 10, asked).await };
        let error = client.runtime.block_on(answered).expect("in time").unwrap_err();
        assert!(error.is_outage(), "{error}");
    }
    server.resume();
    let mut number = 0;
    wait_until("the store decides again", LIMIT, || {
        number += 1;
        client.take(&format!("again:{number}")).is_ok()
    });
}
