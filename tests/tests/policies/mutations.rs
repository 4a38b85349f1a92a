//! The loader reads malformed texts; `cargo xtask campaign` runs it for longer.

use std::path::Path;

use tidegate_tests::mutation::{Mutator, try_policy};

/// Neither a panic nor a hang, and a word about whatever is refused.
#[test]
fn no_text_is_too_odd_for_the_loader() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/policies");
    let files = std::fs::read_dir(folder).expect("the examples are there").filter_map(Result::ok);
    let files = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|it| it == "yaml"));
    let mut texts: Vec<String> =
        files.map(|path| std::fs::read_to_string(path).expect("it can be read")).collect();
    texts.sort();
    assert!(texts.len() > 5, "there are examples to start from");
    let mut mutator = Mutator::new(4, texts);
    let accepted = (0..20_000).filter(|_| try_policy(&mutator.next_text())).count();
    assert!((100..19_900).contains(&accepted), "some are policies and some are not: {accepted}");
}
