//! `check`: what can be said about the code without running it.

use std::fs;

use crate::step::{Failure, Step, Tally, root};

pub(crate) fn run(tally: &mut Tally) -> Result<(), Failure> {
    Step::cargo("fmt --all -- --check").run()?;
    Step::cargo("fmt --manifest-path bench/Cargo.toml -- --check").run()?;
    tally.passed("formatting");

    Step::cargo("clippy --workspace --all-targets --all-features -- -D warnings").run()?;
    tally.passed("lints");

    Step::cargo("doc --workspace --lib --no-deps --all-features")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    tally.passed("documentation");

    // Whether they build is for `package`: it takes minutes.
    Step::cargo("package --workspace --no-verify --allow-dirty --quiet").run()?;
    tally.passed("packages");

    // Alone, because what the rest of the workspace asks for must not be what makes them build.
    Step::cargo("clippy --package tidegate-examples --all-targets -- -D warnings").run()?;
    tally.passed("examples by themselves");

    for (package, manifest) in
        [("tidegate", "crates/tidegate/Cargo.toml"), ("tidegate-tower", "crates/tower/Cargo.toml")]
    {
        let features = features(manifest)?;
        let alone = format!("clippy --package {package} --no-default-features");
        Step::cargo(&format!("{alone} -- -D warnings")).run()?;
        for feature in &features {
            Step::cargo(&format!("{alone} --features {feature} -- -D warnings")).run()?;
        }
        let count = features.len();
        tally.passed(format!("{package} with no feature and with each of {count} alone"));
    }
    Ok(())
}

/// The names in a manifest's `[features]` table, `default` aside.
fn features(manifest: &str) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(root().join(manifest))
        .map_err(|error| Failure::new(format!("could not read {manifest}: {error}")))?;
    Ok(feature_names(&text))
}

fn feature_names(manifest: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[features]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| line.starts_with(|first: char| first.is_ascii_alphanumeric()))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim().into()))
        .filter(|name| name != "default")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_their_table_only() {
        let manifest = "\
[package]
name = \"x\"

[features]
# Why it exists.
default = []
tokio = [
    \"dep:tokio\",
]
laws=[]

[dependencies]
tokio = \"1\"
";
        assert_eq!(feature_names(manifest), ["tokio", "laws"]);
        assert!(feature_names("[package]\nname = \"x\"\n").is_empty());
    }
}
