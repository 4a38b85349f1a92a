//! Which files a policy is read from, and how many.

#![cfg(feature = "policy")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tidegate::policy::{Merging, Source, SourceError};

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tidegate-source-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// A file of zeros that takes no room.
    fn stretch(&self, name: &str, bytes: u64) {
        File::create(self.0.join(name)).unwrap().set_len(bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn source(path: &Path) -> Source {
    Source::new([path.to_owned()], Merging::Refuse)
}

#[test]
fn a_folder_is_its_policy_files_by_name() {
    let folder = Folder::new("names");
    for (name, text) in [
        ("b.yml", "domain: a"),
        ("a.yaml", "domain: a"),
        ("notes.txt", "domain: ["),
        (".a.yaml.yaml", "domain: ["),
        ("..data.yaml", "domain: ["),
    ] {
        folder.write(name, text);
    }
    fs::create_dir(folder.0.join("inner")).unwrap();
    folder.write("inner/c.yaml", "domain: [");
    assert_eq!(source(&folder.0).read().unwrap().file_count(), 2);
    // The second one is refused, so this is their order.
    let loaded = source(&folder.0).load().unwrap();
    assert!(loaded.findings.contains("b.yml:1:9: "), "{}", loaded.findings);
    assert!(loaded.findings.contains("a.yaml already defines this domain"), "{}", loaded.findings);
    let both = Source::new([folder.0.join("b.yml"), folder.0.join("a.yaml")], Merging::Allow);
    assert_eq!(both.load().unwrap().errors, 0);
}

#[test]
fn a_revision_names_names_and_texts() {
    let folder = Folder::new("revision");
    folder.write("a.yaml", "domain: a");
    let first = source(&folder.0).revision().unwrap();
    folder.write("a.yaml", "domain: a");
    assert_eq!(source(&folder.0).revision().unwrap(), first);
    folder.write("a.yaml", "domain: b");
    assert_ne!(source(&folder.0).revision().unwrap(), first);
    fs::remove_file(folder.0.join("a.yaml")).unwrap();
    folder.write("b.yaml", "domain: a");
    assert_ne!(source(&folder.0).revision().unwrap(), first);
    assert_eq!(first.to_string().len(), 32);
}

#[test]
fn unreadable_files_are_named() {
    let folder = Folder::new("unreadable");
    let error = source(&folder.0).load().unwrap_err();
    assert!(matches!(error, SourceError::NoFiles { .. }), "{error}");
    let missing = source(&folder.0.join("missing.yaml")).load().unwrap_err().to_string();
    assert!(missing.starts_with("cannot read") && missing.contains("missing.yaml"), "{missing}");
    fs::create_dir(folder.0.join("folder.yaml")).unwrap();
    let inside = source(&folder.0).load().unwrap_err().to_string();
    assert!(inside.contains("folder.yaml"), "{inside}");
    let nothing = Source::new([], Merging::Refuse).load().unwrap_err();
    assert!(matches!(nothing, SourceError::NoPaths), "{nothing}");
}

#[test]
fn too_much_is_not_read() {
    let folder = Folder::new("large");
    folder.stretch("a.yaml", (16 << 20) + 1);
    let error = source(&folder.0).read().unwrap_err();
    assert!(matches!(error, SourceError::FileTooLarge { bytes: 16_777_217, .. }), "{error}");
    for name in ["a.yaml", "b.yaml", "c.yaml", "d.yaml"] {
        folder.stretch(name, 16 << 20);
    }
    assert_eq!(source(&folder.0).read().unwrap().file_count(), 4);
    folder.write("e.yaml", "x");
    let error = source(&folder.0).read().unwrap_err();
    assert!(
        matches!(&error, SourceError::TooLarge { path } if path.ends_with("e.yaml")),
        "{error}"
    );
}

#[test]
fn too_many_files_are_not_read() {
    let folder = Folder::new("many");
    for number in 0..1_000 {
        folder.stretch(&format!("{number}.yaml"), 0);
    }
    assert_eq!(source(&folder.0).read().unwrap().file_count(), 1_000);
    folder.stretch("last.yaml", 0);
    let error = source(&folder.0).read().unwrap_err();
    assert!(matches!(error, SourceError::TooManyFiles { .. }), "{error}");
}
