//! The proxies of a run and the service behind them.

use std::path::{Path, PathBuf};

use tidegate_tests::servers::Certificates;

use super::{faults, shapes};
use crate::server::fleet::program;
use crate::server::member::{Member, Recipe};
use crate::server::proxies;

pub const OURS: &str = "tidegate";
pub const OURS_LIMITED: &str = "tidegate_limit";
pub const NGINX: &str = "nginx";
pub const LIMIT_REQ: &str = "nginx_limit_req";
pub const PINGORA: &str = "pingora";

/// The limit denies no request, because the decision is measured.
const POLICY: &str = "
domain: bench
requests:
  rules:
    - descriptors: [{entries: [{key: user, header: x-user}]}]
descriptors:
  - {key: user, rate: 1000000/s}
";

/// All proxies, each with one worker.
pub struct Members {
    ours: PathBuf,
    nginx: PathBuf,
    service: Member,
    members: Vec<(&'static str, Member)>,
    pub left_out: Vec<(&'static str, String)>,
}

impl Members {
    /// A smoke run has nginx and the gateway only.
    pub fn start(quick: bool) -> Result<Self, String> {
        let ours = program("TIDEGATE_PROGRAM", "tidegate")
            .ok_or("TIDEGATE_PROGRAM does not name the daemon")?;
        let nginx = program("TIDEGATE_NGINX", "nginx").ok_or("nginx is not on the path")?;
        let service = service(&nginx)?;
        let port = service.port(0);
        let (members, left_out) = (Vec::new(), Vec::new());
        let mut all = Self { ours, nginx: nginx.clone(), service, members, left_out };
        let [bare, limited] =
            [false, true].map(|limited| nginx_proxy(&nginx, port, limited, ("", None)));
        all.members.push((NGINX, bare?));
        all.members.push((OURS, all.gateway(None)?));
        all.members.push((LIMIT_REQ, limited?));
        all.members.push((OURS_LIMITED, all.gateway(Some(POLICY))?));
        if !quick {
            all.add("haproxy", "TIDEGATE_HAPROXY", |program| haproxy(program, port));
            all.add("envoy", "TIDEGATE_ENVOY", |program| proxies::envoy(program, port, &[]));
            all.add("caddy", "TIDEGATE_CADDY", |program| caddy(program, port));
            all.add("traefik", "TIDEGATE_TRAEFIK", |program| traefik(program, port));
            all.add(PINGORA, "TIDEGATE_PINGORA", |program| pingora(program, port));
        }
        Ok(all)
    }

    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Member)> {
        self.members.iter().map(|(name, member)| (*name, member))
    }

    /// One more gateway, with this policy.
    pub fn gateway(&self, policy: Option<&str>) -> Result<Member, String> {
        self.gateway_with(policy, None)
    }

    /// One more gateway, for clients that speak TLS if there are certificates.
    pub fn gateway_for_clients(&self, tls: Option<&Certificates>) -> Result<Member, String> {
        self.gateway_with(None, tls)
    }

    /// One more nginx, for clients that speak TLS if there are certificates.
    pub fn nginx_for_clients(
        &self,
        tls: Option<&Certificates>,
        is_http2: bool,
    ) -> Result<Member, String> {
        let protocol = match (tls.is_some(), is_http2) {
            (true, true) => " ssl http2",
            (true, false) => " ssl",
            (false, true) => " http2",
            (false, false) => "",
        };
        nginx_proxy(&self.nginx, self.service.port(0), false, (protocol, tls))
    }

    /// A gateway with these upstreams: names, URLs and routes.
    pub fn gateway_of(&self, upstreams: &[(&str, &str, &str)]) -> Result<Member, String> {
        let mut recipe = Recipe::new(&self.ours, 1);
        recipe.variables.push(("TIDEGATE__THREADS".into(), "1".into()));
        let settings = faults::settings().map(|(name, value)| (name.to_owned(), value));
        recipe.variables.extend(settings);
        for (name, urls, routes) in upstreams {
            let prefix = format!("TIDEGATE__GATEWAY__UPSTREAMS__{}", name.to_uppercase());
            recipe.variables.push((format!("{prefix}__URLS"), (*urls).into()));
            recipe.variables.push((format!("{prefix}__ROUTES"), (*routes).into()));
        }
        let command = format!("gateway --listen 127.0.0.1:{} --admin off", recipe.ports[0]);
        recipe.with(&command).start()
    }

    /// One more service, at this port if there is one.
    pub fn small_service(&self, port: Option<u16>) -> Result<Member, String> {
        let mut recipe = Recipe::new(&self.nginx, 1);
        recipe.ports = port.map_or(recipe.ports, |port| vec![port]);
        start_nginx(recipe, "return 200 \"a body of thirty-three bytes long\";", "", "")
    }

    fn gateway_with(
        &self,
        policy: Option<&str>,
        tls: Option<&Certificates>,
    ) -> Result<Member, String> {
        let mut recipe = Recipe::new(&self.ours, 1);
        recipe.variables.push(("TIDEGATE__THREADS".into(), "1".into()));
        for (name, file) in tls
            .iter()
            .flat_map(|it| [("CERTIFICATE", &it.server.certificate), ("KEY", &it.server.key)])
        {
            let name = format!("TIDEGATE__LISTEN__GATEWAY__TLS__{name}");
            recipe.variables.push((name, file.display().to_string()));
        }
        let command = format!(
            "gateway --upstream http://127.0.0.1:{} --listen 127.0.0.1:{} --admin off",
            self.service.port(0),
            recipe.ports[0]
        );
        let policy = policy.map(|text| recipe.file("policy.yaml", text));
        let recipe = recipe.with(&command);
        match policy {
            Some(file) => recipe.with(&format!("--config {file}")).start(),
            None => recipe.start(),
        }
    }

    fn add(
        &mut self,
        name: &'static str,
        variable: &str,
        start: impl FnOnce(&Path) -> Result<Member, String>,
    ) {
        let missing = || format!("{name} is not on the path, and {variable} does not name it");
        match program(variable, name).ok_or_else(missing).and_then(|program| start(&program)) {
            Ok(member) => self.members.push((name, member)),
            Err(why) => self.left_out.push((name, why)),
        }
    }
}

/// The service: an nginx that answers with 33 bytes, and with 16 KiB at `/large`.
fn service(nginx: &Path) -> Result<Member, String> {
    let recipe = Recipe::new(nginx, 1);
    let large = shapes::large(recipe.folder.path()).map_err(|error| error.to_string())?;
    let location = format!(
        "return 200 \"a body of thirty-three bytes long\"; }} location = /large {{ alias {};",
        large.display()
    );
    start_nginx(recipe, &location, "", "")
}

fn nginx_proxy(
    nginx: &Path,
    upstream: u16,
    is_limited: bool,
    (protocol, tls): (&str, Option<&Certificates>),
) -> Result<Member, String> {
    let limit = if is_limited { "limit_req zone=users burst=1000 nodelay;" } else { "" };
    let location = format!(
        "{limit} proxy_pass http://service; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; proxy_set_header Host $host; \
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
    );
    let zone = "limit_req_zone $http_x_user zone=users:64m rate=100000r/s;";
    let certificate = tls.map_or_else(String::new, |tls| {
        let (certificate, key) = (tls.server.certificate.display(), tls.server.key.display());
        format!("ssl_certificate {certificate}; ssl_certificate_key {key};")
    });
    let http = format!(
        "{} {certificate} upstream service {{ server 127.0.0.1:{upstream}; keepalive 1024; \
         keepalive_requests 1000000000; }}",
        if is_limited { zone } else { "" }
    );
    start_nginx(Recipe::new(nginx, 1), &location, &http, protocol)
}

fn start_nginx(
    recipe: Recipe<'_>,
    location: &str,
    http: &str,
    protocol: &str,
) -> Result<Member, String> {
    let text = include_str!("conf/nginx.conf")
        .replace("@PORT@", &format!("{}{protocol}", recipe.ports[0]))
        .replace("@LOCATION@", location)
        .replace("@HTTP@", http);
    let file = recipe.file("nginx.conf", &text);
    let command = format!("-p {} -c {file} -e stderr", recipe.folder.path().display());
    recipe.with(&command).start()
}

fn haproxy(program: &Path, upstream: u16) -> Result<Member, String> {
    let recipe = Recipe::new(program, 1);
    let text = include_str!("conf/haproxy.cfg")
        .replace("@PORT@", &recipe.ports[0].to_string())
        .replace("@UPSTREAM@", &upstream.to_string());
    let file = recipe.file("haproxy.cfg", &text);
    recipe.with(&format!("-db -f {file}")).start()
}

fn caddy(program: &Path, upstream: u16) -> Result<Member, String> {
    let mut recipe = Recipe::new(program, 1);
    recipe.variables.push(("GOMAXPROCS".into(), "1".into()));
    let text = include_str!("conf/Caddyfile")
        .replace("@PORT@", &recipe.ports[0].to_string())
        .replace("@UPSTREAM@", &upstream.to_string());
    let file = recipe.file("Caddyfile", &text);
    recipe.with(&format!("run --adapter caddyfile --config {file}")).start()
}

fn traefik(program: &Path, upstream: u16) -> Result<Member, String> {
    let mut recipe = Recipe::new(program, 1);
    recipe.variables.push(("GOMAXPROCS".into(), "1".into()));
    let routes = include_str!("conf/routes.yaml").replace("@UPSTREAM@", &upstream.to_string());
    let routes = recipe.file("routes.yaml", &routes);
    let text = include_str!("conf/traefik.yaml")
        .replace("@PORT@", &recipe.ports[0].to_string())
        .replace("@ROUTES@", &routes);
    let file = recipe.file("traefik.yaml", &text);
    recipe.with(&format!("--configFile={file}")).start()
}

/// The program of `bench/pingora`.
fn pingora(program: &Path, upstream: u16) -> Result<Member, String> {
    let recipe = Recipe::new(program, 1);
    let command = format!("127.0.0.1:{} 127.0.0.1:{upstream}", recipe.ports[0]);
    recipe.with(&command).start()
}
