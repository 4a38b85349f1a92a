//! Programs of other projects, run with the files of `examples/`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::Folder;
use super::ports;
use super::process::Process;
use super::waiting::comes_true;

/// Longer than any program takes to start on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program in front of a daemon.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    folder: Folder,
    address: SocketAddr,
}

impl Proxy {
    /// Starts a program in a copy of `examples/{example}` with other addresses: `127.0.0.1:9000`,
    /// where it listens, and those in `addresses`.
    ///
    /// # Panics
    /// If the files do not have an address that is to be replaced, or it does not start.
    pub fn start(
        program: &Path,
        arguments: &[&str],
        example: &str,
        addresses: &[(&str, SocketAddr)],
    ) -> Self {
        Self::start_edited(program, arguments, example, addresses, &[])
    }

    /// Like [`start`](Self::start), with these texts replaced in the files.
    ///
    /// # Panics
    /// As [`start`](Self::start), or if no file has a text that is to be replaced.
    pub fn start_edited(
        program: &Path,
        arguments: &[&str],
        example: &str,
        addresses: &[(&str, SocketAddr)],
        edits: &[(&str, &str)],
    ) -> Self {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()));
        let addresses: Vec<(&str, SocketAddr)> =
            [("127.0.0.1:9000", own)].into_iter().chain(addresses.iter().copied()).collect();
        let addresses = addresses.iter().map(|(written, real)| (*written, real.to_string()));
        let edits = edits.iter().map(|(written, edited)| (*written, (*edited).to_owned()));
        let edits: Vec<(&str, String)> = addresses.chain(edits).collect();
        let folder = Folder::create();
        let mut text = String::new();
        for file in files(&root().join("examples").join(example)) {
            text += &fs::read_to_string(&file).expect("examples are text");
            copy(&file, &root().join("examples").join(example), &folder, &edits);
        }
        for (written, _) in &edits {
            assert!(text.contains(written), "examples/{example} does not have {written}");
        }
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let process = Process::start(program, &arguments, &[], &folder);
        let mut proxy = Self { process, folder, address: own };
        let listens = comes_true(TIMEOUT, || {
            assert!(proxy.process.is_running(), "{example} ended: {}", proxy.folder.log_tail());
            TcpStream::connect(own).is_ok()
        });
        assert!(listens, "{example} does not listen: {}", proxy.folder.log_tail());
        proxy
    }

    /// The address of the program.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes a file into its folder, such as `site/page.html`.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a new folder");
        fs::write(path, text).expect("a new folder can be written");
    }

    /// The last lines of its output.
    pub fn log_tail(&self) -> String {
        self.folder.log_tail()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("an example").map(|entry| entry.expect("a file").path());
    let (folders, mut all): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    all.extend(folders.iter().flat_map(|folder| files(folder)));
    all
}

fn copy(file: &Path, from: &Path, to: &Folder, edits: &[(&str, String)]) {
    let mut text = fs::read_to_string(file).expect("examples are text");
    for (written, edited) in edits {
        text = text.replace(written, edited);
    }
    let target = to.path().join(file.strip_prefix(from).expect("it is in there"));
    fs::create_dir_all(target.parent().expect("it is in a folder")).expect("a new folder");
    fs::write(target, text).expect("a new folder can be written");
}
