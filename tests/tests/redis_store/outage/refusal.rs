//! A store that refuses commands (F12): no outage, and no request is admitted because of it.

use tidegate::store::{Misconfigured, StoreError};

use super::*;

/// A node whose server asks for a password from now on.
fn locked_out() -> (RedisServer, Node) {
    let redis = RedisServer::start();
    let node = Node::start(&redis.url(), 1);
    assert_eq!(node.check("allow").source(), DecisionSource::Store);
    lock(&redis);
    (redis, node)
}

/// Makes a server require a password from now on, and closes all other connections: a connection
/// that is open stays authenticated.
pub(super) fn lock(redis: &RedisServer) {
    let mut control = redis.connection();
    for words in ["CONFIG SET requirepass secret", "CLIENT KILL TYPE normal SKIPME yes"] {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a name"));
        words.for_each(|word| {
            command.arg(word);
        });
        command.exec(&mut control).expect("it is carried out");
    }
}

#[test]
fn a_wrong_password_admits_no_more_than_the_share() {
    let (_redis, node) = locked_out();
    let failure = || node.limiter.store().failure().map(|(_, error)| error);
    let mut admitted = 0;
    wait_until("it is refused", TIMEOUT, || {
        admitted += u64::from(node.check("local").is_allowed());
        matches!(failure(), Some(StoreError::Misconfigured(Misconfigured::Authentication, _)))
    });
    let allowed = (0..2_000).filter(|_| node.check("allow").is_allowed()).count();
    assert!(allowed <= 1_500, "{allowed} went ahead: `allow` must not be open here");
    assert_eq!(node.check("allow").source(), DecisionSource::Fallback(OnStoreFailure::Local));
    assert!(node.check("deny").is_unavailable());
    assert!(admitted <= 30, "{admitted} of a share of 30");
    // The server answers, so requests go on using it, and a repair takes effect at once.
    assert_eq!(node.state(), CircuitState::Closed);
}
