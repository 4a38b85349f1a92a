//! Runs through the table of `docs/reference/verbs.md`: every cell that names a call works, and every
//! interface answers the same to the same verb.

#[path = "verbs/daemon.rs"]
mod daemon;
#[path = "verbs/library.rs"]
mod library;

use std::path::Path;

use daemon::{Grpc, Http, Resp};
use library::{Memory, Policies, SharedStore};

/// Five units an hour for a user, one for a tenant, two places for jobs, and a cost that is settled.
const POLICY: &str = "domain: api
descriptors:
  - {key: user, rate: 5/h}
  - {key: tenant, rate: 1/h}
  - {key: job, in_flight: 2, ttl: 60s}
  - {key: model, rate: 5/h, cost: 3, actual: {application: true}}
";

/// The same, each limit charged alone.
const EACH: &str = "domain: api
charge: each
descriptors:
  - {key: user, rate: 5/h}
  - {key: tenant, rate: 1/h}
";

/// What is done with units of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Check,
    Peek,
    Refund,
    Reset,
}

/// Whether it was allowed, and how many units the user has left.
type Seen = (bool, u64);

/// An interface of the limiter. A method that an interface does not have is not called: its cell is `–`.
trait Interface {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen;
    /// One unit of the user and one of the tenant, or none: whether both were taken.
    fn together(&mut self, user: &str, tenant: &str) -> bool;
    /// One unit for each user alone.
    fn each(&mut self, users: [&str; 2]) -> [bool; 2];
    /// The names of the limits that decided, and the units that the user had left.
    fn report(&mut self, user: &str) -> (Vec<String>, u64);
    fn explain(&mut self, user: &str) -> String {
        panic!("explain {user}: the table has no such cell")
    }
    /// Reserves three of five units of the user and settles two of them; the units left before and after.
    fn settle(&mut self, user: &str) -> (u64, u64) {
        panic!("settle {user}: the table has no such cell")
    }
    fn until_ready(&mut self) -> bool {
        panic!("until_ready: the table has no such cell")
    }
    /// How many of three places were granted where there are two, and how many after one was freed.
    fn permits(&mut self) -> (usize, usize) {
        panic!("permits: the table has no such cell")
    }
}

fn run(verb: &str, interface: &mut dyn Interface) {
    let user = &format!("user of {verb}");
    match verb {
        "check" => {
            assert_eq!(interface.charge(Verb::Check, user, 1), (true, 4));
        }
        "cost" => {
            assert_eq!(interface.charge(Verb::Check, user, 3), (true, 2));
            assert_eq!(interface.charge(Verb::Check, user, 3), (false, 2));
        }
        "peek" => {
            assert!(interface.charge(Verb::Peek, user, 5).0);
            assert!(!interface.charge(Verb::Peek, user, 6).0);
            assert_eq!(interface.charge(Verb::Check, user, 1), (true, 4));
        }
        "refund" => {
            interface.charge(Verb::Check, user, 4);
            assert!(interface.charge(Verb::Refund, user, 2).0);
            assert_eq!(interface.charge(Verb::Check, user, 3), (true, 0));
        }
        "reset" => {
            interface.charge(Verb::Check, user, 5);
            assert!(interface.charge(Verb::Reset, user, 1).0);
            assert_eq!(interface.charge(Verb::Check, user, 5), (true, 0));
        }
        "together" => {
            assert!(interface.together(user, "tenant"));
            assert!(!interface.together(user, "tenant"), "the tenant has no unit left");
            assert_eq!(interface.charge(Verb::Check, user, 1), (true, 3), "so the user kept his");
        }
        "each" => {
            interface.charge(Verb::Check, user, 5);
            assert_eq!(interface.each([user, "another user"]), [false, true]);
            assert_eq!(interface.charge(Verb::Check, "another user", 1), (true, 3));
        }
        "until_ready" => assert!(interface.until_ready()),
        "permits" => assert_eq!(interface.permits(), (2, 1)),
        "settle" => assert_eq!(interface.settle(user), (2, 3)),
        "explain" => {
            interface.charge(Verb::Check, user, 2);
            let answer = interface.explain(user);
            assert!(answer.contains("3 of 5"), "{answer}");
        }
        "report" => assert_eq!(interface.report(user), (vec!["user".to_owned()], 4)),
        other => panic!("the table has a verb without a test: {other}"),
    }
}

/// The cells of each row, the verb first.
fn table() -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/verbs.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

#[test]
fn every_cell_of_the_table_works() {
    let table = table();
    let names = ["verb", "memory", "shared", "policy", "HTTP", "gRPC", "RESP"];
    assert_eq!(table[0], names);
    assert_eq!(table.len(), 13, "twelve verbs");
    let mut interfaces: Vec<Box<dyn Interface>> = vec![
        Box::new(Memory::new()),
        Box::new(SharedStore::new()),
        Box::new(Policies::new()),
        Box::new(Http::new()),
        Box::new(Grpc::new()),
        Box::new(Resp::new()),
    ];
    let mut cells = 0;
    for row in &table[1..] {
        for ((cell, interface), name) in row[1..].iter().zip(&mut interfaces).zip(&names[1..]) {
            if cell != "–" {
                println!("{} over {name}: {cell}", row[0]);
                run(&row[0], &mut **interface);
                cells += 1;
            }
        }
    }
    assert!(cells > 50, "{cells} cells");
}

/// Each hop of the table in ARCHITECTURE is a file and a function in it.
#[test]
fn the_path_of_a_request_is_as_architecture_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the page");
    let (_, section) = page.split_once("## The path of a request").expect("the section");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let rows =
        &rows[..rows.iter().position(|row| row.starts_with("| crate")).unwrap_or(rows.len())];
    assert!((1..=10).contains(&rows.len()), "{} hops", rows.len());
    for row in rows {
        let cells = row.trim_matches('|').split('|').skip(1);
        for cell in cells {
            let mut words = cell.split('`').filter(|word| !word.trim().is_empty());
            let (file, function) = words.next().zip(words.next()).expect("a file and a function");
            let source = std::fs::read_to_string(root.join("crates").join(file));
            let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
            let is_there =
                ["(", "<"].iter().any(|end| source.contains(&format!("fn {function}{end}")));
            assert!(is_there, "{file} has no {function}");
        }
    }
}
