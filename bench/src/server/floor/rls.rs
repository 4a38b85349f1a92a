//! Envoy's rate limit service on tonic, which admits every request: a runtime of one thread for
//! each core, and connections distributed by the system.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use tidegate_tests::rls::{Code, RateLimitRequest, RateLimitResponse};
use tokio::net::TcpSocket;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::Failure;

const BACKLOG: u32 = 1_024;

pub fn serve(port: u16, threads: u32) -> Result<(), Failure> {
    let threads = (0..threads).map(|_| thread::spawn(move || serve_in_one_thread(port)));
    for thread in threads.collect::<Vec<_>>() {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(())
}

fn serve_in_one_thread(port: u16) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let listen = || {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
            socket.listen(BACKLOG)
        };
        let incoming = TcpListenerStream::new(listen().map_err(|error| error.to_string())?);
        let server = Server::builder().tcp_nodelay(true).add_service(AlwaysYes);
        server.serve_with_incoming(incoming).await.map_err(|error| error.to_string())
    })
}

#[derive(Clone, Copy, Debug)]
struct AlwaysYes;

type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl UnaryService<RateLimitRequest> for AlwaysYes {
    type Response = RateLimitResponse;
    type Future = Answer<Response<RateLimitResponse>, Status>;

    fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
        let overall_code = Code::Ok as i32;
        let answer = RateLimitResponse { overall_code, ..RateLimitResponse::default() };
        Box::pin(async { Ok(Response::new(answer)) })
    }
}

/// As generated code would have it.
impl Service<http::Request<Body>> for AlwaysYes {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async { Ok(Grpc::new(ProstCodec::default()).unary(Self, request).await) })
    }
}

impl NamedService for AlwaysYes {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}
