//! The same decisions on every supported version of Redis and Valkey.

use std::path::PathBuf;

use tidegate_core::AlgorithmName;
use tidegate_tests::servers::{Cluster, RedisServer, old_redis_program, valkey_program};
use tidegate_tests::shared_comparison::{Crowd, compare, crowd, store};
use tidegate_tests::subject::Subject;

const DECISIONS: u64 = 3_000;
const SUBJECTS: [Subject; 7] = [
    Subject::Rated(AlgorithmName::FixedWindow),
    Subject::Rated(AlgorithmName::SlidingWindow),
    Subject::Rated(AlgorithmName::SlidingLog),
    Subject::Rated(AlgorithmName::TokenBucket),
    Subject::Rated(AlgorithmName::Gcra),
    Subject::Rated(AlgorithmName::LeakyBucket),
    Subject::InFlight,
];

/// The program, or a visible note that it is missing.
fn present(name: &str, program: Option<PathBuf>) -> Option<PathBuf> {
    if program.is_none() {
        eprintln!("\n!!! LEFT OUT: {name} is not here, so nothing is compared on it");
    }
    program
}

fn decides_as_the_model_does(program: PathBuf) {
    let server = RedisServer::builder().program(program).start();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = store(&server.url()).await;
        for subject in SUBJECTS {
            assert!(compare(&store, subject, 1, DECISIONS, |_| {}).await >= DECISIONS);
        }
        server.command(&["FLUSHALL"]);
        assert!(crowd(&store, 1, Crowd::Mixed).await > 10_000);
        server.command(&["FLUSHALL"]);
        assert!(crowd(&store, 1, Crowd::Buckets).await > 5_000);
    });
}

#[test]
fn valkey_decides_as_the_model_does() {
    let Some(program) = present("Valkey", valkey_program()) else { return };
    decides_as_the_model_does(program);
}

#[test]
fn redis_6_2_decides_as_the_model_does() {
    let Some(program) = present("Redis 6.2", old_redis_program()) else { return };
    decides_as_the_model_does(program);
}

/// Whose keys share a tag, as everything in one trace does.
#[test]
fn a_cluster_of_valkey_decides_as_the_model_does() {
    let Some(program) = present("Valkey", valkey_program()) else { return };
    let cluster = Cluster::start_with(&RedisServer::builder().program(program));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = store(&cluster.url()).await;
        for subject in SUBJECTS {
            assert!(compare(&store, subject, 2, DECISIONS, |_| {}).await >= DECISIONS);
        }
    });
}
