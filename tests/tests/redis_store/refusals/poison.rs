//! A key that somebody else has overwritten is everybody's business but its neighbours'.

use futures_util::future::join_all;
use tidegate::store::redis::RedisStore;
use tidegate::store::{Misconfigured, StoreError};
use tidegate::{Limit, Op};
use tidegate_tests::servers::RedisServer;
use tokio::runtime::{Builder, Runtime};

use crate::client::{ask, config, limits};

/// Requests that are made together go into one command: nothing runs in between.
fn together() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Takes one unit, and overwrites what was written for it.
async fn poison(
    store: &RedisStore,
    server: &RedisServer,
    limit: &Limit,
    text: &str,
    with: &[&str],
) {
    ask(store, limit, text, Op::Take(1)).await.expect("nobody has touched it yet");
    let keys = server.command(&["KEYS", &format!("*{{{text}}}")]);
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of names");
    let [key] = &keys[..] else { panic!("not one key: {keys:?}") };
    server.command(&["DEL", key]);
    server.command(&[&[with[0], key], &with[1..]].concat());
}

fn is_refused(asked: &Result<tidegate::Decision, StoreError>) {
    let Err(error) = asked else { panic!("decided on somebody else's: {asked:?}") };
    let is_clear = matches!(error, StoreError::Misconfigured(Misconfigured::WrongType, _));
    assert!(is_clear, "{error}");
    assert!(!error.is_outage() && error.to_string().contains("namespace"), "{error}");
}

fn calls(server: &RedisServer) -> u64 {
    let count = |field: &str| -> u64 {
        let stats = server.info(field);
        let calls = stats.split_once("calls=").and_then(|(_, rest)| rest.split_once(','));
        calls.expect("a count of calls").0.parse().expect("a number")
    };
    count("cmdstat_evalsha")
}

/// In every family, one of thirty requests in one command finds something that is not ours.
#[test]
fn one_poisoned_key_fails_nobody_else() {
    let others: [(usize, &[&str]); 6] = [
        (0, &["LPUSH", "x"]),
        (1, &["LPUSH", "x"]),
        (2, &["SADD", "x"]),
        (3, &["SET", "x"]),
        // The right type, but nothing that a script has written.
        (3, &["LPUSH", "x"]),
        (4, &["SET", "x"]),
    ];
    let server = RedisServer::start();
    let runtime = together();
    let store = runtime.block_on(RedisStore::connect(config(&server.url()))).expect("sound");
    for (round, (family, with)) in others.into_iter().enumerate() {
        let limit = &limits()[family];
        let poisoned = format!("poisoned:{round}");
        runtime.block_on(async {
            poison(&store, &server, limit, &poisoned, with).await;
            is_refused(&ask(&store, limit, &poisoned, Op::Take(1)).await);
            let texts: Vec<String> = (0..30)
                .map(|n| if n == 17 { poisoned.clone() } else { format!("{round}:{n}") })
                .collect();
            let before = calls(&server);
            let asked = texts.iter().map(|text| ask(&store, limit, text, Op::Take(1)));
            let found = join_all(asked).await;
            for (text, asked) in texts.iter().zip(&found) {
                match *text == poisoned {
                    true => is_refused(asked),
                    false => assert!(asked.as_ref().unwrap().is_allowed(), "{text}"),
                }
            }
            let calls = calls(&server) - before;
            assert!(calls > 30, "they were asked together first, and then each alone: {calls}");
            // Asked twice, charged once.
            let rest = ask(&store, limit, &texts[3], Op::Read(0)).await.unwrap();
            assert_eq!(rest.remaining, 2, "{limit:?}");
        });
    }
}

/// What gives back is written at once; a neighbour that fails later must not have it done again.
#[test]
fn what_is_given_back_beside_a_poisoned_key_is_given_back_once() {
    let server = RedisServer::start();
    let runtime = together();
    runtime.block_on(async {
        let store = RedisStore::connect(config(&server.url())).await.expect("sound");
        for (family, limit) in limits().iter().enumerate().take(4) {
            let [text, poisoned] = ["spent", "poisoned"].map(|what| format!("{what}:{family}"));
            let with: &[&str] = if family < 3 { &["LPUSH", "x"] } else { &["SET", "x"] };
            poison(&store, &server, limit, &poisoned, with).await;
            ask(&store, limit, &text, Op::Take(3)).await.unwrap();
            let given = ask(&store, limit, &text, Op::Return(1));
            let refused = ask(&store, limit, &poisoned, Op::Take(1));
            let (given, refused) = futures_util::future::join(given, refused).await;
            assert_eq!(given.unwrap().remaining, 1, "{limit:?}");
            is_refused(&refused);
            let rest = ask(&store, limit, &text, Op::Read(0)).await.unwrap();
            assert_eq!(rest.remaining, 1, "{limit:?}");
        }
    });
}

#[test]
fn a_key_that_is_removed_again_is_decided_again() {
    let server = RedisServer::start();
    let runtime = together();
    runtime.block_on(async {
        let store = RedisStore::connect(config(&server.url())).await.expect("sound");
        for limit in &limits() {
            poison(&store, &server, limit, "key", &["HSET", "x", "1"]).await;
            is_refused(&ask(&store, limit, "key", Op::Take(1)).await);
            server.command(&["FLUSHALL"]);
            assert!(ask(&store, limit, "key", Op::Take(3)).await.unwrap().is_allowed());
            server.command(&["FLUSHALL"]);
        }
    });
}
