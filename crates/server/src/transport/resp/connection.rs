//! Connection commands that Redis clients send first.

use super::command::{Session, Silence, wrong_count};
use super::frame::{Words, integer};
use super::reply::{Protocol, Replies};
use crate::transport::access::is_same;

/// The Redis version that is reported to clients: the one whose commands these are.
const REDIS_VERSION: &str = "7.4.0";

/// The longest name of a client.
const LONGEST_NAME: usize = 256;

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

pub(crate) fn ping(words: &Words<'_>, replies: &mut Replies<'_>) {
    match words.len() {
        1 => replies.simple("PONG"),
        2 => replies.bulk(words.at(1)),
        _ => wrong_count("ping", replies),
    }
}

pub(crate) fn echo(words: &Words<'_>, replies: &mut Replies<'_>) {
    match words.len() {
        2 => replies.bulk(words.at(1)),
        _ => wrong_count("echo", replies),
    }
}

pub(crate) fn select(words: &Words<'_>, replies: &mut Replies<'_>) {
    match (words.len(), integer(words.at(1))) {
        (2, Some(0)) => replies.ok(),
        (2, Some(_)) => replies.error("ERR DB index is out of range"),
        (2, None) => replies.error("ERR value is not an integer or out of range"),
        _ => wrong_count("select", replies),
    }
}

/// `CONFIG`: an empty reply, because some programs send it; there are no settings to read.
pub(crate) fn config(words: &Words<'_>, replies: &mut Replies<'_>) {
    match words.at(1) {
        sub if sub.eq_ignore_ascii_case(b"GET") && words.len() > 2 => replies.map(0),
        sub => unknown_part("CONFIG", sub, replies),
    }
}

/// `COMMAND`: an empty reply; clients use it to complete names.
pub(crate) fn command(words: &Words<'_>, replies: &mut Replies<'_>) {
    match words.at(1) {
        b"" => replies.array(0),
        sub if sub.eq_ignore_ascii_case(b"COUNT") => replies.integer(0),
        sub if sub.eq_ignore_ascii_case(b"DOCS") => replies.map(0),
        sub if sub.eq_ignore_ascii_case(b"INFO") => replies.array(0),
        sub if sub.eq_ignore_ascii_case(b"LIST") => replies.array(0),
        sub => unknown_part("COMMAND", sub, replies),
    }
}

pub(crate) fn info(replies: &mut Replies<'_>) {
    let text = concat!(
        "# Server\r\nredis_version:7.4.0\r\nredis_mode:standalone\r\nserver_name:tidegate\r\n",
        "tidegate_version:",
        env!("CARGO_PKG_VERSION"),
        "\r\n\r\n# Replication\r\nrole:master\r\n",
    );
    replies.bulk(text.as_bytes());
}

/// `AUTH [user] password`.
pub(crate) fn auth(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) {
    let (user, password) = match words.len() {
        2 => (&b"default"[..], words.at(1)),
        3 => (words.at(1), words.at(2)),
        _ => return wrong_count("auth", replies),
    };
    if session.settings.password.is_none() && words.len() == 2 {
        replies.error(
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        );
    } else if admits(session, user, password) {
        session.is_known = true;
        replies.ok();
    } else {
        replies.error(WRONG_PASSWORD);
    }
}

/// Whether the credentials are valid. As in Redis, user `default` may send any password if none is
/// configured.
fn admits(session: &Session, user: &[u8], password: &[u8]) -> bool {
    let Some(expected) = session.settings.password.as_deref() else { return user == b"default" };
    is_same(password, expected.as_bytes()) && user == b"default"
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
pub(crate) fn hello(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) {
    let protocol = match (words.len(), words.at(1)) {
        (1, _) => session.protocol,
        (_, b"2") => Protocol::Resp2,
        (_, b"3") => Protocol::Resp3,
        _ => return replies.error("NOPROTO unsupported protocol version"),
    };
    let (mut known, mut name) = (session.is_known, None);
    let mut at = 2;
    while at < words.len() {
        let option = words.at(at);
        if option.eq_ignore_ascii_case(b"AUTH") && at + 2 < words.len() {
            if !admits(session, words.at(at + 1), words.at(at + 2)) {
                return replies.error(WRONG_PASSWORD);
            }
            known = true;
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && at + 1 < words.len() {
            name = Some(words.at(at + 1));
            at += 2;
        } else {
            return replies.error("ERR Syntax error in HELLO option");
        }
    }
    if !known {
        return replies.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        );
    }
    if name.is_some_and(|name| !is_name(name)) {
        return replies
            .error("ERR Client names cannot contain spaces, newlines or special characters.");
    }
    session.is_known = true;
    session.protocol = protocol;
    if let Some(name) = name {
        name.clone_into(&mut session.name);
    }
    replies.protocol = protocol;
    replies.map(7);
    for (key, value) in [("server", "tidegate"), ("version", REDIS_VERSION)] {
        replies.bulk(key.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    replies.bulk(b"id");
    replies.integer(session.id);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(key.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"modules");
    replies.array(0);
}

/// `CLIENT`, with the subcommands that client libraries send automatically.
pub(crate) fn client(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) {
    let is = |name: &str| words.at(1).eq_ignore_ascii_case(name.as_bytes());
    match words.len() {
        2 if is("ID") => replies.integer(session.id),
        2 if is("GETNAME") && session.name.is_empty() => replies.null(),
        2 if is("GETNAME") => replies.bulk(&session.name),
        3 if is("SETNAME") && is_name(words.at(2)) => {
            words.at(2).clone_into(&mut session.name);
            replies.ok();
        }
        3 if is("SETNAME") => {
            replies.error("ERR Client names cannot contain spaces, newlines or special characters.")
        }
        4 if is("SETINFO") => replies.ok(),
        3 if is("NO-EVICT") || is("NO-TOUCH") => replies.ok(),
        3 if is("REPLY") => reply(session, words.at(2), replies),
        _ => unknown_part("CLIENT", words.at(1), replies),
    }
}

fn reply(session: &mut Session, mode: &[u8], replies: &mut Replies<'_>) {
    session.silence = match mode.to_ascii_uppercase().as_slice() {
        b"ON" => Silence::Off,
        b"OFF" => Silence::On,
        // `SKIP` does not enable replies that are all disabled.
        b"SKIP" if session.silence == Silence::On => Silence::On,
        b"SKIP" => Silence::Starts,
        _ => return replies.error("ERR syntax error"),
    };
    replies.ok();
}

fn is_name(name: &[u8]) -> bool {
    name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic)
}

fn unknown_part(command: &str, part: &[u8], replies: &mut Replies<'_>) {
    let shown = String::from_utf8_lossy(&part[..part.len().min(128)]);
    replies.error(format!("ERR unknown subcommand '{shown}'. Try {command} HELP."));
}
