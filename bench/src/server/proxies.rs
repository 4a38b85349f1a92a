//! Proxies that limit, or that call a rate limit service.

use std::path::Path;

use super::member::{Member, Recipe};

/// nginx: bare on its first port, with `limit_req` on its second.
pub fn nginx(program: &Path) -> Result<Member, String> {
    let recipe = Recipe::new(program, 2);
    let text = include_str!("conf/nginx.conf")
        .replace("@BARE@", &recipe.ports[0].to_string())
        .replace("@LIMITED@", &recipe.ports[1].to_string());
    let file = recipe.file("nginx.conf", &text);
    let command = format!("-p {} -c {file} -e stderr", recipe.folder.path().display());
    recipe.with(&command).start()
}

/// Envoy: without rate limits on its first port, with one service on each other port.
pub fn envoy(
    program: &Path,
    upstream: u16,
    services: &[(&str, Option<u16>)],
) -> Result<Member, String> {
    let known = services.iter().filter_map(|(name, port)| Some((*name, (*port)?)));
    let known: Vec<(&str, u16)> = known.collect();
    let recipe = Recipe::new(program, 1 + services.len());
    let mut listeners = listener(recipe.ports[0], None);
    let mut clusters = cluster("upstream", upstream, "");
    for (number, (name, service)) in services.iter().enumerate() {
        listeners += &listener(recipe.ports[1 + number], service.map(|_| *name));
    }
    for (name, port) in known {
        clusters += &cluster(name, port, HTTP2);
    }
    let text = include_str!("conf/envoy.yaml")
        .replace("@LISTENERS@", &listeners)
        .replace("@CLUSTERS@", &clusters);
    let file = recipe.file("envoy.yaml", &text);
    // One worker, and nothing that two of them on a machine would share.
    let command = format!("-c {file} --concurrency 1 --log-level error --disable-hot-restart");
    recipe.with(&command).start()
}

const HTTP2: &str = r#"    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}"#;

fn listener(port: u16, service: Option<&str>) -> String {
    let filter = service.map_or_else(String::new, |name| {
        include_str!("conf/envoy_filter.yaml").replace("@CLUSTER@", name)
    });
    include_str!("conf/envoy_listener.yaml")
        .replace("@PORT@", &port.to_string())
        .replace("@FILTER@\n", &filter)
}

fn cluster(name: &str, port: u16, protocol: &str) -> String {
    include_str!("conf/envoy_cluster.yaml")
        .replace("@NAME@", name)
        .replace("@PORT@", &port.to_string())
        .replace("@PROTOCOL@", protocol)
}
