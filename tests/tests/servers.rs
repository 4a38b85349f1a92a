//! The servers that other tests start do what those tests rely on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use redis::{Commands, ConnectionLike, RedisResult, Value};
use tidegate_tests::servers::{
    Cluster, RedisServer, Sentinels, old_redis_program, valkey_program, wait_until,
};

/// Long enough for a machine that builds at the same time.
const LIMIT: Duration = Duration::from_secs(10);
const HOUR: i64 = 3_600;

fn connect(url: &str) -> RedisResult<redis::Connection> {
    let limit = Duration::from_millis(200);
    let connection = redis::Client::open(url)?.get_connection_with_timeout(limit)?;
    connection.set_read_timeout(Some(limit))?;
    Ok(connection)
}

fn folder_of(server: &RedisServer) -> PathBuf {
    let answer = server.command(&["CONFIG", "GET", "dir"]);
    let (_, folder): (String, String) = redis::from_redis_value(answer).expect("a name, a value");
    folder.into()
}

/// Gone, or dead and not yet reaped by its new parent.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, fields)| fields.starts_with(" Z"))
}

#[test]
fn a_server_answers_and_is_gone_with_its_folder_after_the_test() {
    let server = RedisServer::start();
    let pid = server.pid();
    let mut connection = connect(&server.url()).unwrap();
    let _: () = connection.set("key", 7).unwrap();
    assert_eq!(server.command(&["GET", "key"]), Value::BulkString(b"7".into()));
    assert_eq!(server.info("process_id"), pid.to_string());
    assert_eq!(server.info("tcp_port"), server.port().to_string());
    assert!(server.try_command(&["NOSUCH"]).is_err());
    let folder = folder_of(&server);
    assert!(folder.is_dir());

    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "neither running nor a zombie");
    assert!(!folder.exists());
}

#[test]
fn directives_reach_the_server() {
    let server = RedisServer::builder().arg("maxmemory", "64mb").arg("appendonly", "yes").start();
    assert_eq!(server.info("maxmemory"), (64 << 20).to_string());
    server.command(&["SET", "key", "kept"]);
    server.restart();
    assert_eq!(server.command(&["GET", "key"]), Value::BulkString(b"kept".into()));
}

#[test]
#[should_panic(expected = "nonsense")]
fn a_server_that_cannot_start_shows_its_log() {
    RedisServer::builder().arg("nonsense", "yes").start();
}

#[test]
fn a_killed_server_comes_back_empty_on_the_same_port() {
    let server = RedisServer::start();
    let (url, pid) = (server.url(), server.pid());
    server.command(&["SET", "key", "1"]);
    server.kill();
    assert!(has_ended(pid) && !server.is_answering());
    assert!(connect(&url).is_err());
    server.restart();
    assert_ne!(server.pid(), pid);
    assert_eq!(server.url(), url);
    let value: Option<u8> = connect(&url).unwrap().get("key").unwrap();
    assert_eq!(value, None);
}

#[test]
fn a_restart_waits_for_the_port() {
    let server = RedisServer::start();
    server.kill();
    let listener = TcpListener::bind(server.address()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.restart());
        let is_refused = || server.log().contains("Address already in use");
        wait_until("the port is refused", LIMIT, is_refused);
        drop(listener);
    });
    assert!(connect(&server.url()).unwrap().check_connection());
}

#[test]
fn a_paused_server_keeps_connections_and_answers_later() {
    let server = RedisServer::start();
    let mut connection = connect(&server.url()).unwrap();
    server.pause();
    let silence = connection.req_command(&redis::cmd("PING")).unwrap_err();
    assert!(silence.is_timeout(), "{silence}");
    server.resume();
    wait_until("the resumed server answers", LIMIT, || {
        connect(&server.url()).is_ok_and(|mut it| it.check_connection())
    });
    server.pause();
    // Dropped while paused: it must not linger.
}

#[test]
fn processor_time_grows_with_work() {
    let server = RedisServer::start();
    let before = server.cpu_seconds();
    server.command(&["EVAL", "for i = 1, 1e7 do end", "0"]);
    let spent = server.cpu_seconds() - before;
    assert!(spent > 0.0 && spent < 10.0, "{spent}");
}

#[test]
fn a_socket_replaces_the_port() {
    let server = RedisServer::builder().unix_socket().start();
    assert!(server.url().starts_with("unix:///"), "{}", server.url());
    let _: () = connect(&server.url()).unwrap().set("key", 1).unwrap();
    assert_eq!(server.info("tcp_port"), "0");
}

#[test]
fn tls_demands_a_certificate_of_the_client() {
    let server = RedisServer::builder().tls().start();
    assert!(server.url().starts_with("rediss://127.0.0.1:"));
    let certificates = server.certificates();
    let ping = |host: &str, identified: bool| {
        let mut command = Command::new("redis-cli");
        command.args(["-h", host, "-p", &server.port().to_string(), "--tls", "--cacert"]);
        command.arg(&certificates.authority);
        if identified {
            command.arg("--cert").arg(&certificates.client.certificate);
            command.arg("--key").arg(&certificates.client.key);
        }
        let output = command.arg("PING").stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ping("127.0.0.1", true).trim(), "PONG");
    assert_eq!(ping("localhost", true).trim(), "PONG");
    assert_eq!(ping("127.0.0.1", false).trim(), "");
    assert!(connect(&format!("redis://{}", server.address())).is_err(), "plain text is refused");
    // The control connection does not need any of this.
    server.command(&["PING"]);
}

#[test]
fn the_wall_clock_steps_while_the_server_runs() {
    let server = RedisServer::builder().faketime().start();
    let time = || -> i64 {
        let (seconds, _): (i64, i64) = redis::from_redis_value(server.command(&["TIME"])).unwrap();
        seconds
    };
    let mut connection = connect(&server.url()).unwrap();
    let start = time();
    for (step, total) in [(HOUR, HOUR), (-2 * HOUR, -HOUR), (1, 1 - HOUR), (HOUR - 1, 0)] {
        server.step_clock(step);
        let drift = time() - start - total;
        assert!((0..10).contains(&drift), "after {step}: {drift}");
        assert!(connection.check_connection(), "the same connection goes on");
    }
    let uptime: i64 = server.info("uptime_in_seconds").parse().unwrap();
    assert!(uptime.abs() < 10, "{uptime}");
}

/// Not a test by itself: the test below runs it in a process to be killed.
#[test]
#[ignore = "run by the test of the watcher"]
fn a_server_waits_for_its_end() {
    let server = RedisServer::start();
    let folder = folder_of(&server);
    server.pause();
    println!("orphan {} {}", server.pid(), folder.display());
    // Lasts until this process is killed; run by hand without input, it ends at once.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_server_does_not_outlive_a_killed_test_process() {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["a_server_waits_for_its_end", "--exact", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| Some(line.unwrap().split_once("orphan ")?.1.to_owned()));
    let line = line.expect("it tells who it is");
    let (pid, folder) = line.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    assert!(!has_ended(pid));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the orphan is killed", LIMIT, || has_ended(pid));
    wait_until("its folder is removed", LIMIT, || !Path::new(folder).exists());
}

/// Two keys of one slot, and a third that is never written.
const KEYS: [&str; 3] = ["{tide}one", "{tide}two", "{tide}none"];

#[test]
fn a_slot_migrates_with_its_keys() {
    let cluster = Cluster::start();
    let slot = cluster.slot_of(KEYS[0]);
    let (from, to) = (cluster.primary_of(slot), cluster.other_primary(slot));
    from.command(&["MSET", KEYS[0], "1", KEYS[1], "2"]);
    let refusal = |server: &RedisServer, words: &[&str]| {
        let error = server.try_command(words).unwrap_err();
        error.code().unwrap_or_default().to_owned()
    };
    assert_eq!(refusal(to, &["GET", KEYS[0]]), "MOVED");

    cluster.begin_migration(slot, to);
    assert_eq!(refusal(from, &["GET", KEYS[2]]), "ASK");
    assert_eq!(refusal(from, &["MGET", KEYS[0], KEYS[2]]), "TRYAGAIN");
    cluster.migrate_keys(slot, to, &[KEYS[0]]);
    assert_eq!(refusal(from, &["GET", KEYS[0]]), "ASK");
    assert_eq!(from.command(&["GET", KEYS[1]]), Value::BulkString(b"2".into()));
    assert_eq!(cluster.primary_of(slot).pid(), from.pid(), "half-way it has its old owner");

    cluster.finish_migration(slot, to);
    assert_eq!(cluster.primary_of(slot).pid(), to.pid());
    assert_eq!(refusal(from, &["GET", KEYS[0]]), "MOVED");
    let values: Vec<u8> = redis::from_redis_value(to.command(&["MGET", KEYS[0], KEYS[1]])).unwrap();
    assert_eq!(values, [1, 2]);

    cluster.migrate_slot(slot, from);
    cluster.wait_until_settled(LIMIT);
    assert_eq!(from.command(&["GET", KEYS[1]]), Value::BulkString(b"2".into()));
}

#[test]
fn a_replica_takes_the_place_of_a_cluster_primary() {
    let cluster = Cluster::start();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", cluster.addresses().join(",")));
    assert_eq!(cluster.addresses().len(), 6);
    let slot = cluster.slot_of("key");
    cluster.primary_of(slot).set_on_replicas("key", 1);
    let fallen = cluster.failover(slot);
    assert!(!fallen.is_answering());
    let outage = cluster.wait_for_promotion(slot, LIMIT);
    assert!(outage > Duration::from_millis(400), "it cannot be noticed sooner: {outage:?}");
    let promoted = cluster.primary_of(slot);
    assert_ne!(promoted.port(), fallen.port());
    assert_eq!(promoted.command(&["GET", "key"]), Value::BulkString(b"1".into()));

    fallen.restart();
    cluster.wait_until_settled(LIMIT);
    assert_eq!(fallen.info("role"), "slave");

    let paused = cluster.pause_primary_of(slot);
    assert_eq!(paused.pid(), promoted.pid());
    cluster.wait_for_promotion(slot, LIMIT);
    assert_eq!(cluster.primary_of(slot).pid(), fallen.pid());
    paused.resume();
    cluster.wait_until_settled(LIMIT);
    assert_eq!(paused.info("role"), "slave");
}

#[test]
fn sentinels_replace_a_killed_primary() {
    sentinels_replace(|sentinels| sentinels.kill_primary(), RedisServer::restart);
}

#[test]
fn sentinels_replace_a_paused_primary() {
    sentinels_replace(|sentinels| sentinels.pause_primary(), RedisServer::resume);
}

fn sentinels_replace(take_down: fn(&Sentinels) -> &RedisServer, bring_back: fn(&RedisServer)) {
    let sentinels = Sentinels::start();
    let url = sentinels.url();
    assert!(url.starts_with("redis+sentinel://127.0.0.1:") && url.ends_with("/mymaster"), "{url}");
    sentinels.primary().set_on_replicas("key", 2);
    let fallen = take_down(&sentinels);
    let outage = sentinels.wait_for_promotion(LIMIT);
    assert!(outage > Duration::from_millis(400), "it cannot be noticed sooner: {outage:?}");
    assert_ne!(sentinels.primary().port(), fallen.port());
    assert_eq!(sentinels.primary().command(&["GET", "key"]), Value::BulkString(b"1".into()));
    bring_back(fallen);
    wait_until("it came back as a replica", LIMIT, || fallen.info("role") == "slave");
}

#[test]
fn other_programs_serve_likewise() {
    for program in [valkey_program(), old_redis_program()].into_iter().flatten() {
        let builder = RedisServer::builder().program(&program);
        let server = builder.clone().faketime().start();
        server.step_clock(HOUR);
        assert_eq!(server.info("executable"), program.display().to_string());
        let cluster = Cluster::start_with(&builder);
        let slot = cluster.slot_of(KEYS[0]);
        cluster.migrate_slot(slot, cluster.other_primary(slot));
        let sentinels = Sentinels::start_with(&builder);
        sentinels.kill_primary();
        sentinels.wait_for_promotion(LIMIT);
    }
}
