//! Every transport of the daemon, asked by clients and by sockets that misbehave.

mod admin;
mod gateway;
mod grpc;
mod http;
mod json;
mod mistake;
mod odd_bytes;
mod resp;
