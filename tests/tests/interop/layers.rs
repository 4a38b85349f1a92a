//! The four layers of `examples/layers`: each stops what it is there for, and no other does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;

use tidegate_tests::http::{Answer, connect_from, get};
use tidegate_tests::servers::{
    Folder, Process, Proxy, RedisServer, by_debian, free_port, our_program, wait_until,
};

use crate::proxies::{NGINX, TIMEOUT};

/// Which layer has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The handler.
    Served,
    Edge,
    /// A limit by API key.
    Gateway,
    /// A limit by user.
    Application,
}

struct Layers {
    nginx: Proxy,
    admin: SocketAddr,
    _processes: [Process; 2],
    _folder: Folder,
    _redis: RedisServer,
}

impl Layers {
    fn start() -> Self {
        let (redis, folder) = (RedisServer::start(), Folder::create());
        let [gateway, application, admin] =
            [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/layers");
        let file = |name: &str| files.join(name).display().to_string();
        let start = |program: &str, arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
            Process::start(&our_program(program), &arguments, &[], &folder)
        };
        let store = redis.url();
        let processes = [
            start("examples/layers_app", &[&store, &application.to_string()]),
            start(
                "tidegate",
                &[
                    "gateway",
                    "--upstream",
                    &format!("http://{application}"),
                    "--listen",
                    &gateway.to_string(),
                    "--admin",
                    &admin.to_string(),
                    "--config",
                    &file("gateway.yaml"),
                    "--settings",
                    &file("settings.yaml"),
                    "--store",
                    &store,
                ],
            ),
        ];
        for address in [gateway, application, admin] {
            wait_until("all listen", TIMEOUT, || TcpStream::connect(address).is_ok());
        }
        let addresses = [("127.0.0.1:8000", gateway)];
        let nginx = Proxy::start(&by_debian("nginx"), &NGINX, "layers", &addresses);
        Self { nginx, admin, _processes: processes, _folder: folder, _redis: redis }
    }

    /// Sends a request from this address.
    fn send(&self, source: [u8; 4], path: &str, (key, user): (&str, &str)) -> TcpStream {
        let mut socket = connect_from(source, self.nginx.address());
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\nX-User: {user}\r\n\
             Connection: close\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).expect("sent");
        socket
    }

    /// Number of requests that the gateway has denied.
    fn denied(&self) -> u64 {
        let page = get(self.admin, "/metrics", "").body;
        let sample = "tidegate_requests_total{listener=\"gateway\",verdict=\"denied\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(sample));
        line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{page}"))
    }
}

/// Who has answered.
fn by(mut socket: TcpStream) -> By {
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    let answer = Answer::read(&text);
    let limits: Vec<&str> =
        answer.head.lines().filter(|line| line.starts_with("ratelimit-policy:")).collect();
    let names = limits.join(" ");
    match answer.status {
        200 => By::Served,
        503 if answer.body.contains("<center>nginx") => By::Edge,
        429 if names.contains("\"user\"") || names.contains("\"reports_of\"") => By::Application,
        429 if names.contains("\"api_key\"") => By::Gateway,
        _ => panic!("{text}"),
    }
}

fn count(answers: &[By], by: By) -> usize {
    answers.iter().filter(|it| **it == by).count()
}

#[test]
fn each_layer_stops_what_it_is_there_for_and_no_other_does() {
    let layers = Layers::start();
    let one = |source: [u8; 4], path: &str, who: (&str, &str)| by(layers.send(source, path, who));
    assert_eq!(one([127, 0, 0, 1], "/", ("k0", "u0")), By::Served);

    // A flood from one address, with a key and a user of its own for each request.
    let flood: Vec<TcpStream> = (0..40)
        .map(|number| {
            let (key, user) = (format!("f{number}"), format!("flood{number}"));
            layers.send([127, 0, 0, 9], "/reports/sales", (&key, &user))
        })
        .collect();
    assert_eq!(one([127, 0, 0, 10], "/", ("k0", "u0")), By::Served, "another address");
    let answers: Vec<By> = flood.into_iter().map(by).collect();
    assert!(count(&answers, By::Served) >= 10 && count(&answers, By::Edge) >= 1, "{answers:?}");
    assert_eq!(count(&answers, By::Served) + count(&answers, By::Edge), 40, "{answers:?}");
    assert_eq!(layers.denied(), 0);

    // A greedy key, from many addresses and for many users.
    let answers: Vec<By> = (0..100)
        .map(|number: u8| one([127, 0, 1, number], "/", ("greedy", &format!("g{number}"))))
        .collect();
    let denied = count(&answers, By::Gateway);
    assert!((1..=40).contains(&denied), "{denied}: a minute has not passed");
    assert_eq!(count(&answers, By::Served) + denied, 100, "{answers:?}");
    assert_eq!(layers.denied(), denied as u64);
    assert_eq!(one([127, 0, 0, 1], "/", ("k0", "u0")), By::Served, "another key");

    // A slow endpoint: reports of one user, over keys and addresses of their own.
    let reports: Vec<TcpStream> = (0..8)
        .map(|number| {
            layers.send([127, 0, 2, number], "/reports/sales", (&format!("r{number}"), "ann"))
        })
        .collect();
    let answers: Vec<By> = thread::scope(|scope| {
        let reading: Vec<_> = reports.into_iter().map(|it| scope.spawn(|| by(it))).collect();
        reading.into_iter().map(|it| it.join().expect("no panic")).collect()
    });
    assert!(
        count(&answers, By::Served) >= 2 && count(&answers, By::Application) >= 1,
        "{answers:?}"
    );
    assert_eq!(count(&answers, By::Served) + count(&answers, By::Application), 8, "{answers:?}");
    assert_eq!(layers.denied(), denied as u64, "the gateway has denied none of them");

    // A greedy user.
    let answers: Vec<By> = (0..30)
        .map(|number: u8| one([127, 0, 3, number], "/", (&format!("w{number}"), "bob")))
        .collect();
    assert!(count(&answers, By::Application) >= 1, "{answers:?}");
    assert_eq!(count(&answers, By::Served) + count(&answers, By::Application), 30, "{answers:?}");
}
