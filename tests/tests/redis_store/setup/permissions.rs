//! The rights that the advice names are enough, and none of them is too many.

use tidegate::store::redis::{Condition, Finding};
use tidegate::store::{Misconfigured, StoreError};
use tidegate_tests::servers::{Cluster, RedisServer, Sentinels, old_redis_program, valkey_program};

use super::works;
use crate::client::{Client, config};

/// The rules of the advice for the whole of `kind`; what every store needs is in front, and what checks
/// persistence behind.
fn advised(kind: &str) -> Vec<String> {
    let advice = Misconfigured::Permission.advice();
    let (always, special) = advice.split_once(';').expect("special cases follow");
    let is_wanted =
        |part: &&str| part.contains("persistence") || (!kind.is_empty() && part.contains(kind));
    let special = special.split(';').filter(is_wanted);
    let rules = always.split(' ').chain(special.flat_map(|part| part.split(' ')));
    rules
        .filter(|word| word.starts_with(['+', '~']))
        .map(|rule| rule.replace("<namespace>", "tg"))
        .collect()
}

/// Gives the user these rights and no others.
fn permit<'a>(server: &RedisServer, rules: impl IntoIterator<Item = &'a String>) {
    let words = ["ACL", "SETUSER", "limiter", "reset", "on", ">secret"];
    let words: Vec<&str> = words.into_iter().chain(rules.into_iter().map(String::as_str)).collect();
    server.command(&words);
}

fn url(server: &RedisServer) -> String {
    format!("redis://limiter:secret@{}", server.address())
}

/// No connection of ours was refused anything.
fn nothing_was_refused(server: &RedisServer) {
    let refused: Vec<redis::Value> =
        redis::from_redis_value(server.command(&["ACL", "LOG"])).expect("a list");
    let refused = refused.iter().map(|entry| format!("{entry:?}"));
    // The library names itself to the server, which it may not, and does not mind.
    let refused: Vec<String> = refused.filter(|entry| !entry.contains("client")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

fn the_advice_is_enough(server: &RedisServer) {
    permit(server, &advised(""));
    works(config(&url(server)));
    works(config(&format!("{}?protocol=resp3", url(server))));
    server.command(&["SCRIPT", "FLUSH"]);
    works(config(&url(server)));
    nothing_was_refused(server);
    permit(server, &advised("database"));
    works(config(&format!("{}/2", url(server))));
    nothing_was_refused(server);
}

#[test]
fn the_advised_rights_are_enough_on_one_server() {
    the_advice_is_enough(&RedisServer::start());
}

#[test]
fn the_advised_rights_are_enough_on_other_servers() {
    for (name, program) in [("Valkey", valkey_program()), ("Redis 6.2", old_redis_program())] {
        match program {
            Some(program) => {
                the_advice_is_enough(&RedisServer::builder().program(program).start());
            }
            None => eprintln!("LEFT OUT: {name} is not here, so its permissions are not tested"),
        }
    }
}

#[test]
fn the_advised_rights_are_enough_in_a_cluster() {
    let cluster = Cluster::start();
    cluster.servers().for_each(|server| permit(server, &advised("cluster")));
    let url = cluster.url().replace("://", "://limiter:secret@");
    works(config(&url));
    cluster.servers().for_each(nothing_was_refused);
    cluster.servers().for_each(|server| permit(server, &advised("")));
    let Err(error) = Client::connect(config(&url)) else { panic!("it needs to know the slots") };
    assert!(matches!(error, StoreError::Misconfigured(Misconfigured::Permission, _)), "{error}");
}

#[test]
fn the_advised_rights_are_enough_with_sentinels() {
    let sentinels = Sentinels::start();
    sentinels.servers().iter().for_each(|server| permit(server, &advised("")));
    works(config(&sentinels.url().replace("://", "://limiter:secret@")));
    sentinels.servers().iter().for_each(nothing_was_refused);
}

/// F12: so no request is the first to need a command that is not permitted. Nor is there a right
/// that could be left out.
#[test]
fn every_right_that_is_missing_is_found_at_the_start() {
    let server = RedisServer::start();
    let advised = advised("");
    assert!(advised.len() > 20, "{advised:?}");
    for missing in &advised {
        permit(&server, advised.iter().filter(|rule| *rule != missing));
        let found = Client::connect(config(&url(&server)));
        let optional = [("+info", "INFO is not permitted"), ("+config|get", "CONFIG GET save is")];
        if let Some((_, says)) = optional.iter().find(|(right, _)| right == missing) {
            let client = found.unwrap_or_else(|error| panic!("{error}"));
            client.decides("everything");
            let findings = client.store.findings();
            let [Finding { condition: Condition::Unchecked, message, .. }] = &*findings else {
                panic!("{missing}: {findings:?}")
            };
            assert!(message.contains(says) && message.contains(missing), "{message}");
            continue;
        }
        let Err(error) = found else { panic!("{missing} is not needed") };
        let StoreError::Misconfigured(Misconfigured::Permission, why) = &error else {
            panic!("{missing}: {error}")
        };
        assert!(why.contains(&server.address()), "{why}");
        assert!(error.to_string().contains(Misconfigured::Permission.advice()), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
