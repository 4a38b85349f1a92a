//! F12: what is wrong is found when the store is set up, within a second, and said with what to do.

use std::time::Duration;

use Misconfigured::{Authentication, CrossSlot, OutOfMemory, Permission, ReadOnly, Setting};
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::{Misconfigured, StoreError};
use tidegate_tests::servers::{Cluster, RedisServer, Sentinels};
use tokio::time::timeout;

use super::{encrypted, read};
use crate::client::runtime;

/// The promise; a store that takes longer is not ready.
/// Connecting may take a second, and asking for the role another.
const SOON: Duration = Duration::from_secs(3);

/// With the default deadline.
fn config(url: &str) -> RedisConfig {
    RedisConfig::new(url).expect("a valid address")
}

fn refusal(config: RedisConfig) -> StoreError {
    let connecting = async { timeout(SOON, RedisStore::connect(config)).await };
    let connected = runtime().block_on(connecting);
    let error = connected.expect("an answer soon").expect_err("something is wrong");
    assert!(!error.to_string().contains("secret"), "{error}");
    println!("{error}");
    error
}

/// It is refused for this reason, and the message names the server and what to do.
fn refused(config: RedisConfig, why: Misconfigured, server: &str) -> String {
    let error = refusal(config);
    let StoreError::Misconfigured(what, _) = &error else { panic!("not {why:?}: {error}") };
    assert_eq!(*what, why, "{error}");
    let message = error.to_string();
    assert!(message.contains(server), "{server} is not in {message}");
    assert!(message.contains(why.advice()), "{message}");
    message
}

/// There is no server, which may be the URL's fault.
fn missing(config: RedisConfig, server: &str) {
    let error = refusal(config);
    assert!(error.is_outage(), "{error}");
    let message = error.to_string();
    assert!(
        message.contains(server) && message.contains("rediss:// if it speaks TLS"),
        "{message}"
    );
}

#[test]
fn users_and_passwords_that_are_wrong() {
    let server = RedisServer::start();
    let (address, url) = (server.address(), server.url());
    server.command(&["ACL", "SETUSER", "limiter", "on", ">right", "~*", "+@all"]);
    server.command(&["ACL", "SETUSER", "default", "resetpass", ">right"]);
    for protocol in ["", "?protocol=resp3"] {
        for user in ["limiter:secret", "unknown:secret", ":secret"] {
            let url = format!("redis://{user}@{address}{protocol}");
            refused(config(&url), Authentication, &address);
        }
        refused(config(&format!("{url}{protocol}")), Authentication, &address);
    }
    let server = RedisServer::start();
    let url = format!("redis://:secret@{}", server.address());
    let message = refused(config(&url), Authentication, &server.address());
    assert!(message.contains("password"), "none is set, so none may be given: {message}");
}

/// The credentials of sentinels are not those of the servers they watch.
#[test]
fn passwords_of_sentinels_that_are_wrong() {
    let sentinels = Sentinels::start();
    for sentinel in sentinels.sentinels() {
        // What `requirepass` sets, for connections from now on.
        sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">right"]);
    }
    for query in ["", "?sentinel_pass=secret", "?sentinel_user=other&sentinel_pass=secret"] {
        let error = refusal(config(&format!("{}{query}", sentinels.url())));
        let is_told = matches!(error, StoreError::Misconfigured(Authentication, _));
        assert!(is_told, "{query}: {error}");
        let message = error.to_string();
        let names_one = sentinels.sentinels().iter().any(|it| message.contains(&it.address()));
        assert!(names_one, "{message}");
    }
    let url = format!("{}?sentinel_pass=right", sentinels.url());
    let connecting = async { timeout(SOON, RedisStore::connect(config(&url))).await };
    runtime().block_on(connecting).expect("an answer soon").expect("the right password");
}

#[test]
fn rights_that_are_missing() {
    let server = RedisServer::start();
    for rule in ["-evalsha", "-eval", "-zadd", "-time", "-set", "-@all", "resetkeys"] {
        let words = ["ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all", rule];
        server.command(&words);
        let url = format!("redis://limiter:secret@{}", server.address());
        refused(config(&url), Permission, &server.address());
    }
    let url = format!("redis://limiter:secret@{}/1", server.address());
    server.command(&[
        "ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all", "-select",
    ]);
    let message = refused(config(&url), Permission, &server.address());
    assert!(message.contains("'select'"), "{message}");
}

#[test]
fn a_database_that_does_not_exist() {
    let server = RedisServer::start();
    refused(config(&format!("{}/99", server.url())), Setting, &server.address());
}

#[test]
fn a_replica() {
    let primary = RedisServer::start();
    let replicates = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::builder().arg("replicaof", &replicates).start();
    refused(config(&replica.url()), ReadOnly, &replica.address());
    let words = ["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all", "-info"];
    replica.command(&words);
    let url = format!("redis://limiter:secret@{}", replica.address());
    refused(config(&url), ReadOnly, &replica.address());
}

#[test]
fn a_node_of_a_cluster_as_if_it_were_alone() {
    let cluster = Cluster::start();
    for address in [&cluster.addresses()[0], &cluster.addresses()[1]] {
        let message = refused(config(&format!("redis://{address}")), CrossSlot, address);
        assert!(message.contains("redis+cluster://"), "{message}");
    }
    // A user without `INFO` finds out the kind of server by the first key.
    for node in cluster.servers().take(3) {
        node.command(&["ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all", "-info"]);
        let url = format!("redis://limiter:secret@{}", node.address());
        let error = refusal(config(&url));
        let is_clear = matches!(error, StoreError::Misconfigured(CrossSlot, _));
        assert!(is_clear, "{error}");
    }
}

#[test]
fn one_server_as_if_it_were_a_cluster() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://{}", server.address());
    refused(config(&url), Setting, &server.address());
}

#[test]
fn a_server_that_is_full() {
    let server = RedisServer::builder().arg("maxmemory", "1mb").start();
    let filler = "x".repeat(10_000);
    let fill = |n: u32| server.try_command(&["SET", &format!("other:{n}"), &filler]).is_ok();
    assert!((0..1_000).any(|n| !fill(n)), "it never was full");
    refused(config(&server.url()), OutOfMemory, &server.address());
}

#[test]
fn a_server_that_must_not_write() {
    let server = RedisServer::builder().arg("min-replicas-to-write", "1").start();
    let message = refused(config(&server.url()), ReadOnly, &server.address());
    assert!(message.contains("NOREPLICAS"), "{message}");
}

#[test]
fn no_server_at_all() {
    let server = RedisServer::start();
    let (url, address) = (server.url(), server.address());
    let kinds = ["redis://", "redis+cluster://", "redis+sentinel://"];
    drop(server);
    missing(config(&url), &address);
    for kind in kinds {
        let path = if kind.contains("sentinel") { "/primary" } else { "" };
        missing(config(&format!("{kind}{address}{path}")), &address);
    }
    missing(config("redis://no-such-host.invalid:6379"), "no-such-host.invalid");
    missing(config("unix:///no/such/socket"), "/no/such/socket");
}

#[test]
fn a_server_that_hangs() {
    let server = RedisServer::start();
    server.pause();
    missing(config(&server.url()), &server.address());
    missing(config(&format!("redis+cluster://{}", server.address())), &server.address());
    missing(config(&format!("redis+sentinel://{}/primary", server.address())), &server.address());
}

#[test]
fn sentinels_that_know_no_such_primary() {
    let sentinels = Sentinels::start();
    let url = sentinels.url().replace("mymaster", "other");
    let sentinel = &sentinels.sentinels()[0];
    refused(config(&url), Setting, "knows no primary named \"other\"");
    sentinels.sentinels()[2].kill();
    refused(config(&url), Setting, "knows no primary named \"other\"");
    // A sentinel is no server, nor a server a sentinel.
    let message = refused(config(&sentinel.url()), Setting, &sentinel.address());
    assert!(message.contains("is a sentinel"), "{message}");
    let server = sentinels.servers()[0].address();
    let message = refused(config(&format!("redis+sentinel://{server}/x")), Setting, &server);
    assert!(message.contains("is no sentinel"), "{message}");
}

#[test]
fn certificates_that_do_not_fit() {
    let (server, other) = (encrypted(RedisServer::builder()), encrypted(RedisServer::builder()));
    let (certificates, others) = (server.certificates(), other.certificates());
    let authority = read(&certificates.authority);
    let client = (read(&certificates.client.certificate), read(&certificates.client.key));
    let (url, address) = (server.url(), server.address());
    // Neither the system's CAs nor another CA have signed it.
    refused(config(&url).tls_certificate(client.0.clone(), client.1.clone()), Setting, &address);
    refused(config(&url).tls_authority(read(&others.authority)), Setting, &address);
    // The server requires a client certificate of its own CA.
    refused(config(&url).tls_authority(authority.clone()), Setting, &address);
    let foreign = (read(&others.client.certificate), read(&others.client.key));
    let foreign =
        config(&url).tls_authority(authority.clone()).tls_certificate(foreign.0, foreign.1);
    refused(foreign, Setting, &address);
    refused(config(&url).tls_authority("no certificate"), Setting, &address);
    let nonsense = config(&url).tls_authority(authority).tls_certificate("no", "key");
    refused(nonsense, Setting, &address);
}

#[test]
fn encryption_that_only_one_side_wants() {
    let plain = RedisServer::start();
    let url = plain.url().replace("redis://", "rediss://");
    // It waits for the end of a command that never comes.
    missing(config(&url), &plain.address());
    let server = encrypted(RedisServer::builder());
    missing(config(&server.url().replace("rediss://", "redis://")), &server.address());
}
