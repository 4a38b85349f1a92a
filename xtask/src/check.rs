//! `check`: checks of the code that do not run it.

use std::fs;

use crate::step::{Failure, Step, Summary, root};

pub(crate) fn run(summary: &mut Summary) -> Result<(), Failure> {
    Step::cargo("fmt --all -- --check").run()?;
    Step::cargo("fmt --manifest-path bench/Cargo.toml -- --check").run()?;
    summary.passed("formatting");

    Step::cargo("clippy --workspace --all-targets --all-features -- -D warnings").run()?;
    summary.passed("lints");

    Step::cargo("doc --workspace --lib --no-deps --all-features")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    summary.passed("documentation");

    // `package` builds the packages, which takes minutes.
    Step::cargo("package --workspace --no-verify --allow-dirty --quiet").run()?;
    summary.passed("packages");

    // Built alone, so that features of other packages in the workspace do not help.
    Step::cargo("clippy --package tidegate-examples --all-targets -- -D warnings").run()?;
    summary.passed("examples by themselves");

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
        summary.passed(format!("{package} with no feature and with each of {count} alone"));
    }
    Ok(())
}

/// The names in a manifest's `[features]` table, without `default`.
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
