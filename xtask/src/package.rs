//! `package`: checks that the published packages build by themselves, with the oldest supported
//! Rust, and on every supported platform.

use std::fs;

use crate::step::{Failure, Step, Summary, root};

const PUBLISHED: &str = "--package tidegate-core --package tidegate --package tidegate-tower \
                         --package tidegate-sim --package tidegate-server --package tidegate-cli";

/// Platforms of the daemon. TLS needs a C compiler for each.
const DAEMON: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
];

/// Further platforms of the library: checked with every feature but `redis`, whose TLS needs a C
/// compiler.
const LIBRARY: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Debian packages with C compilers for [`DAEMON`].
const COMPILERS: &str = "gcc-aarch64-linux-gnu musl-tools";

pub(crate) fn run(summary: &mut Summary) -> Result<(), Failure> {
    Step::cargo("package --workspace --allow-dirty").run()?;
    summary.passed("every package builds by itself");

    let oldest = oldest()?;
    Step::new("rustup", &format!("toolchain install {oldest} --profile minimal")).run()?;
    Step::cargo(&format!("+{oldest} check {PUBLISHED} --all-features --target-dir target/oldest"))
        .run()?;
    summary.passed(format!("published crates with Rust {oldest}"));

    Step::new("rustup", &format!("target add {} {}", DAEMON.join(" "), LIBRARY.join(" "))).run()?;
    Step::new("apt-get", &format!("install --yes {COMPILERS}")).run()?;
    for target in DAEMON {
        Step::cargo(&format!("check --package tidegate-cli --target {target}"))
            // Debian has no compiler for musl on ARM; the code in question needs no C library.
            .env("CC_aarch64_unknown_linux_musl", "aarch64-linux-gnu-gcc")
            .run()?;
    }
    for target in LIBRARY {
        Step::cargo(&format!("check --package tidegate --features tokio,watch --target {target}"))
            .run()?;
    }
    summary.passed(format!(
        "the daemon on {}; the library on {}",
        DAEMON.join(", "),
        LIBRARY.join(", ")
    ));
    Ok(())
}

/// The `rust-version` of the workspace.
fn oldest() -> Result<String, Failure> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))
        .map_err(|error| Failure::new(format!("could not read Cargo.toml: {error}")))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = version.and_then(|rest| rest.strip_suffix('"'));
    version.map(Into::into).ok_or_else(|| Failure::new("Cargo.toml states no rust-version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_version_is_stated() {
        let oldest = oldest().unwrap();
        assert!(oldest.starts_with("1."), "{oldest}");
    }
}
