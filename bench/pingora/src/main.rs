//! A reverse proxy on Pingora, with one thread: `pingora LISTEN UPSTREAM`.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

/// Forwards all requests to one address.
struct To(SocketAddr);

#[async_trait]
impl ProxyHttp for To {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(
        &self,
        _: &mut Session,
        (): &mut (),
    ) -> pingora_core::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (arguments.next(), arguments.next()) else {
        panic!("usage: pingora LISTEN UPSTREAM");
    };
    let upstream = upstream.parse().expect("an address");
    let configuration = ServerConf { threads: 1, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, configuration);
    server.bootstrap();
    let mut service = http_proxy_service(&Arc::clone(&server.configuration), To(upstream));
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
