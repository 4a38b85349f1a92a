//! `grpc.reflection`: describes the services to generic tools.

use std::sync::{Arc, LazyLock};

use hyper::body::Bytes;

use super::body::streaming;
use super::message::{self, Messages};
use super::status::Code;
use super::{GrpcConnection, Reply};
use crate::transport::rls::{Malformed, Reader, Writer};

/// The compiled files of `proto` with their imports: a `FileDescriptorSet`.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("../../../proto/descriptors.bin");

/// Parsed on first use; a test ensures that they can be parsed.
static FILES: LazyLock<Vec<File>> = LazyLock::new(|| files(DESCRIPTORS).unwrap_or_default());

/// A file of the protocol.
#[derive(Debug, Default)]
struct File {
    name: &'static str,
    bytes: &'static [u8],
    /// Names of the imported files.
    imports: Vec<&'static str>,
    /// Full names of its services.
    services: Vec<String>,
    /// Full names of all its declarations, including services and their methods.
    symbols: Vec<String>,
}

/// The kind of a request.
enum Query<'a> {
    File(&'a str),
    Symbol(&'a str),
    Services,
    /// Extensions, of which there are none, or an unknown kind.
    Other,
}

/// Answers one message after the other.
pub(super) fn converse(connection: &Arc<GrpcConnection>, mut messages: Messages) -> Reply {
    streaming(connection, async move |connection: Arc<GrpcConnection>, sender| {
        loop {
            let answer = match messages.next(&connection.account).await {
                Ok(Some(message)) => answer(&message).map_err(Into::into),
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let is_last = answer.is_err();
            if sender.send(answer).await.is_err() || is_last {
                return;
            }
        }
    })
}

fn answer(request: &[u8]) -> Result<Bytes, Malformed> {
    let (mut host, mut wanted) = ("", Query::Other);
    let mut fields = Reader::new(request);
    while let Some(field) = fields.field()? {
        match field.number {
            1 => host = field.text()?,
            3 => wanted = Query::File(field.text()?),
            4 => wanted = Query::Symbol(field.text()?),
            7 => wanted = Query::Services,
            5 | 6 => wanted = Query::Other,
            _ => {}
        }
    }
    let found = match wanted {
        Query::File(name) => FILES.iter().find(|file| file.name == name),
        Query::Symbol(name) => FILES.iter().find(|file| file.symbols.iter().any(|it| it == name)),
        Query::Services | Query::Other => None,
    };
    Ok(message::write(|bytes| {
        let mut response = Writer::new(bytes);
        response.bytes(1, host.as_bytes());
        response.element(2, request);
        match (found, wanted) {
            (Some(file), _) => response.message(4, |message| {
                for file in with_imports(file) {
                    message.element(1, file.bytes);
                }
            }),
            (None, Query::Services) => response.message(6, |message| {
                for service in FILES.iter().flat_map(|file| &file.services) {
                    message.message(1, |message| message.bytes(1, service.as_bytes()));
                }
            }),
            (None, _) => response.message(7, |message| {
                message.number(1, Code::NotFound as u64);
                message.bytes(2, b"not found");
            }),
        }
    }))
}

/// The file and all its imports, without duplicates.
fn with_imports(file: &'static File) -> Vec<&'static File> {
    let mut found = vec![file];
    let mut at = 0;
    while let Some(file) = found.get(at) {
        let imports = FILES.iter().filter(|other| file.imports.contains(&other.name));
        let new: Vec<&File> =
            imports.filter(|other| found.iter().all(|known| known.name != other.name)).collect();
        found.extend(new);
        at += 1;
    }
    found
}

fn files(set: &'static [u8]) -> Result<Vec<File>, Malformed> {
    let (mut files, mut fields) = (Vec::new(), Reader::new(set));
    while let Some(field) = fields.field()? {
        if field.number == 1 {
            files.push(file(field.bytes()?)?);
        }
    }
    Ok(files)
}

/// `FileDescriptorProto`.
fn file(bytes: &'static [u8]) -> Result<File, Malformed> {
    let mut file = File { bytes, ..File::default() };
    let package = text(bytes, 2)?;
    let mut fields = Reader::new(bytes);
    while let Some(field) = fields.field()? {
        match field.number {
            1 => file.name = field.text()?,
            3 => file.imports.push(field.text()?),
            4 => declare_message(&mut file, package, field.bytes()?)?,
            5 => file.symbols.push(format!("{package}.{}", text(field.bytes()?, 1)?)),
            6 => declare_service(&mut file, package, field.bytes()?)?,
            _ => {}
        }
    }
    Ok(file)
}

/// `DescriptorProto`, with the messages and enumerations within it.
fn declare_message(file: &mut File, outer: &str, bytes: &[u8]) -> Result<(), Malformed> {
    let name = format!("{outer}.{}", text(bytes, 1)?);
    let mut fields = Reader::new(bytes);
    while let Some(field) = fields.field()? {
        match field.number {
            3 => declare_message(file, &name, field.bytes()?)?,
            4 => file.symbols.push(format!("{name}.{}", text(field.bytes()?, 1)?)),
            _ => {}
        }
    }
    file.symbols.push(name);
    Ok(())
}

/// `ServiceDescriptorProto`, with its methods.
fn declare_service(file: &mut File, package: &str, bytes: &[u8]) -> Result<(), Malformed> {
    let name = format!("{package}.{}", text(bytes, 1)?);
    let mut fields = Reader::new(bytes);
    while let Some(field) = fields.field()? {
        if field.number == 2 {
            file.symbols.push(format!("{name}.{}", text(field.bytes()?, 1)?));
        }
    }
    file.symbols.push(name.clone());
    file.services.push(name);
    Ok(())
}

/// The text in this field of a message.
fn text(bytes: &[u8], number: u32) -> Result<&str, Malformed> {
    let (mut fields, mut text) = (Reader::new(bytes), "");
    while let Some(field) = fields.field()? {
        if field.number == number {
            text = field.text()?;
        }
    }
    Ok(text)
}

/// Answers a request from a fuzzer: checks that the answer repeats the request.
#[cfg(feature = "fuzzing")]
pub(super) fn try_message(request: &[u8]) {
    let Ok(answer) = answer(request) else { return };
    let message = &answer[5..];
    let found = message.windows(request.len().max(1)).any(|part| part == request);
    assert!(found || request.is_empty(), "{}", message.escape_ascii());
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ROOTS: [&str; 4] = [
        "envoy/service/ratelimit/v3/rls.proto",
        "grpc/health/v1/health.proto",
        "grpc/reflection/v1/reflection.proto",
        "grpc/reflection/v1alpha/reflection.proto",
    ];

    #[test]
    fn the_compiled_files_are_those_beside_them() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut compiler = protox::Compiler::new([folder.join("proto")]).unwrap();
        compiler.include_imports(true).include_source_info(false);
        let compiled = compiler.open_files(ROOTS).unwrap().encode_file_descriptor_set();
        if compiled != DESCRIPTORS {
            let new = folder.join("../../target/descriptors.bin");
            std::fs::write(&new, compiled).unwrap();
            panic!("proto/descriptors.bin is not what its files say: {} is", new.display());
        }
    }

    #[test]
    fn every_symbol_is_found_with_all_that_it_needs() {
        let services = FILES.iter().flat_map(|file| &file.services).map(|name| &**name);
        let services: Vec<&str> = services.collect();
        let expected = [
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        assert_eq!(services, expected);
        for symbol in [
            "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
            "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit",
            "envoy.type.v3.RateLimitUnit",
            "google.protobuf.Duration",
        ] {
            assert!(
                FILES.iter().any(|file| file.symbols.iter().any(|it| it == symbol)),
                "{symbol}"
            );
        }
        let rls = FILES.iter().find(|file| file.name == ROOTS[0]).unwrap();
        for file in with_imports(rls) {
            let names: Vec<&str> = with_imports(file).iter().map(|file| file.name).collect();
            assert!(file.imports.iter().all(|import| names.contains(import)), "{}", file.name);
        }
    }
}
