//! Every way to connect that people use in production, and what is said of every one that is wrong.

mod findings;
mod permissions;
mod refusals;

use std::fs;

use crate::client::{Client, LIMIT, config};
use tidegate::store::redis::{Condition, Finding, RedisConfig};
use tidegate_tests::servers::{Builder, Cluster, RedisServer, Sentinels, wait_until};

/// Connects as told, and decides. The servers of tests write nothing to disk, and have no other
/// condition.
fn works(config: RedisConfig) -> Client {
    let client = Client::connect(config).unwrap_or_else(|error| panic!("{error}"));
    let findings = client.store.findings();
    let is_expected = |finding: &Finding| finding.condition == Condition::Persistence;
    assert!(!findings.is_empty() && findings.iter().all(is_expected), "{findings:?}");
    client.decides("everything");
    client
}

fn read(path: &std::path::Path) -> Vec<u8> {
    fs::read(path).expect("the server's files can be read")
}

fn encrypted(builder: Builder) -> RedisServer {
    builder.tls().start()
}

#[test]
fn by_tcp() {
    works(config(&RedisServer::start().url()));
}

#[test]
fn by_a_unix_socket() {
    let server = RedisServer::builder().unix_socket().start();
    works(config(&server.url()));
    works(config(&format!("{}?db=2", server.url())));
}

#[test]
fn with_resp3() {
    let server = RedisServer::start();
    let client = works(config(&format!("{}?protocol=resp3", server.url())));
    let clients = server.command(&["CLIENT", "LIST"]);
    let clients: String = redis::from_redis_value(clients).unwrap();
    assert!(clients.lines().any(|line| line.contains("resp=3")), "{clients}");
    drop(client);
}

#[test]
fn with_the_password_of_the_server() {
    // The control connection has no password, so it must not be asked for one.
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "default", "resetpass", ">p@ss/word"]);
    works(config(&format!("redis://:p%40ss%2Fword@{}", server.address())));
    let url = format!("redis://:p%40ss%2Fword@{}/0?protocol=resp3", server.address());
    works(config(&url));
}

#[test]
fn in_another_database() {
    let server = RedisServer::start();
    let client = works(config(&format!("{}/3", server.url())));
    client.take("key").unwrap();
    let mut connection = server.connection();
    let mut keys = |database: &str| {
        let _: () = redis::cmd("SELECT").arg(database).query(&mut connection).unwrap();
        redis::cmd("KEYS").arg("*{key}").query::<Vec<String>>(&mut connection).unwrap().len()
    };
    assert_eq!([keys("0"), keys("3")], [0, 1]);
}

#[test]
fn encrypted_with_an_authority_of_our_own() {
    let server = encrypted(RedisServer::builder().arg("tls-auth-clients", "no"));
    let authority = read(&server.certificates().authority);
    works(config(&server.url()).tls_authority(authority.clone()));
    let by_name = server.url().replace("127.0.0.1", "localhost");
    works(config(&by_name).tls_authority(authority));
}

/// Managed servers often speak nothing newer.
#[test]
fn encrypted_by_tls_1_2() {
    let server = encrypted(
        RedisServer::builder().arg("tls-auth-clients", "no").arg("tls-protocols", "TLSv1.2"),
    );
    works(config(&server.url()).tls_authority(read(&server.certificates().authority)));
}

#[test]
fn encrypted_with_a_certificate_of_the_client() {
    let server = encrypted(RedisServer::builder());
    let certificates = server.certificates();
    let (certificate, key) =
        (read(&certificates.client.certificate), read(&certificates.client.key));
    let authority = read(&certificates.authority);
    works(config(&server.url()).tls_authority(authority).tls_certificate(certificate, key));
}

/// Limits of a second or less go to servers of their own.
#[test]
fn with_a_second_server_for_limits_per_second() {
    use tidegate::{Limit, Op, Rate};
    let (server, quick) = (RedisServer::start(), RedisServer::start());
    let client = works(config(&server.url()).per_second(&quick.url()).unwrap());
    let limit = Limit::fixed_window(Rate::per_second(5)).build().unwrap();
    client.ask(&limit, "key", Op::Take(1)).unwrap();
    let keys = |server: &RedisServer| {
        let keys = server.command(&["KEYS", "*{key}"]);
        redis::from_redis_value::<Vec<String>>(keys).unwrap().len()
    };
    assert_eq!([keys(&server), keys(&quick)], [0, 1]);
    // Both are tried at the start.
    quick.command(&["ACL", "SETUSER", "default", "-lset"]);
    let config = config(&server.url()).per_second(&quick.url()).unwrap();
    let Err(error) = Client::connect(config) else { panic!("it may not do what it needs") };
    assert!(error.to_string().contains(&quick.address()), "{error}");
}

#[test]
fn to_a_cluster_from_any_of_its_nodes() {
    let cluster = Cluster::start();
    works(config(&cluster.url()));
    for address in cluster.addresses() {
        works(config(&format!("redis+cluster://{address}")));
    }
    // Nodes that are gone are passed over.
    works(config(&format!(
        "redis+cluster://127.0.0.1:1,{}?protocol=resp3",
        cluster.addresses()[3]
    )));
}

#[test]
fn to_the_primary_that_sentinels_name() {
    let sentinels = Sentinels::start();
    works(config(&sentinels.url()));
    works(config(&format!("{}/5?protocol=resp3", sentinels.url())));
}

/// A client may start without its server.
#[test]
fn without_a_server_if_that_is_asked_for() {
    let server = RedisServer::start();
    server.kill();
    let Err(error) = Client::connect(config(&server.url())) else { panic!("no server is there") };
    assert!(error.is_outage(), "{error}");
    let client = Client::connect(config(&server.url()).start_without_server());
    let client = client.expect("it does not need one");
    let error = client.take("before").expect_err("no server is there");
    assert!(error.is_outage(), "{error}");
    assert!(client.runtime.block_on(client.store.self_test()).is_err());
    server.restart();
    wait_until("the store decides", LIMIT, || client.take("after").is_ok());
    assert_eq!(client.store.findings(), []);
    let found = client.runtime.block_on(client.store.self_test()).expect("it answers");
    assert_eq!(found.iter().map(|it| it.condition).collect::<Vec<_>>(), [Condition::Persistence]);
    assert_eq!(client.store.findings(), found);
    client.decides("everything");
}

/// A misconfiguration is still found at the start.
#[test]
fn a_wrong_server_is_refused_even_if_none_is_needed() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "default", "-evalsha"]);
    let config = config(&server.url()).start_without_server();
    let Err(error) = Client::connect(config) else { panic!("it may not run scripts") };
    assert!(!error.is_outage(), "{error}");
}

#[test]
fn a_cluster_that_comes_later() {
    let cluster = Cluster::start();
    cluster.servers().for_each(RedisServer::kill);
    let client = Client::connect(config(&cluster.url()).start_without_server());
    let client = client.expect("it does not need one");
    let error = client.take("before").expect_err("no server is there");
    assert!(error.is_outage(), "{error}");
    cluster.servers().for_each(RedisServer::restart);
    wait_until("the store decides", LIMIT * 2, || client.take("after").is_ok());
}
