//! Arrows between crates point down only.

use std::collections::BTreeSet;

use tarn_tests::layers::{Crate, Purpose, violations, workspace};
use tarn_tests::tree;

fn uses(name: &str, used: &str, purpose: Purpose) -> Vec<String> {
    violations(&[Crate {
        name: name.into(),
        uses: vec![(used.into(), purpose)],
    }])
}

#[test]
fn the_workspace_keeps_its_layers() {
    let crates = workspace(&tree::root().join("Cargo.toml")).expect("cargo metadata");
    assert!(
        crates
            .iter()
            .any(|c| c.name == "tarn-cli" && c.uses.iter().any(|(u, _)| u == "tarn-base"))
    );
    let found = violations(&crates);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// `fuzz/` is a workspace of its own: what a crate of this one begins or ceases to need stands in both lock files.
#[test]
fn the_fuzzers_lock_file_knows_what_the_crates_need() {
    let lock = std::fs::read_to_string(tree::root().join("fuzz/Cargo.lock")).expect("lock file");
    let lock: toml::Table = lock.parse().expect("TOML");
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(tree::root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let mut seen = 0;
    for package in lock["package"].as_array().expect("packages") {
        let own = |p: &&cargo_metadata::Package| package["name"].as_str() == Some(&p.name);
        let Some(own) = metadata.packages.iter().find(own) else {
            continue;
        };
        let needed = own.dependencies.iter();
        let needed: BTreeSet<_> = needed
            .filter(|d| d.kind != cargo_metadata::DependencyKind::Development)
            .map(|d| d.name.as_str())
            .collect();
        let locked = package.get("dependencies").and_then(|d| d.as_array());
        let locked: BTreeSet<_> = locked
            .into_iter()
            .flatten()
            .filter_map(|d| d.as_str()?.split(' ').next())
            .collect();
        assert_eq!(
            locked, needed,
            "{}: run `cargo metadata --manifest-path fuzz/Cargo.toml` to renew fuzz/Cargo.lock",
            own.name
        );
        seen += 1;
    }
    assert!(seen > 5);
}

#[test]
fn wrong_arrows_are_refused() {
    let wrong = [
        ("tarn-base", "tarn-ports", "up"),
        ("tarn-engine", "tarn-local", "a core that touches the world"),
        ("tarn-engine", "tarn-flow", "sideways between cores"),
        ("tarn-ports", "tarn-sys", "sideways"),
        ("tarn-local", "tarn-movers", "sideways between adapters"),
        ("tarn-local", "tarn-engine", "an adapter that knows a core"),
        ("tarn-cli", "tarn-daemon", "sideways between roots"),
        (
            "tarn-checkpoint",
            "tarn-libtarn",
            "the library that needs what is over it",
        ),
        (
            "tarn-objects",
            "tarn-checkpoint",
            "sideways between libraries",
        ),
        (
            "tarn-client",
            "tarn-checkpoint",
            "an adapter that needs the library",
        ),
        ("tarn-cli", "tarn-tests", "a root that needs the tests"),
        ("tarn-cli", "tarn-unheard-of", "a crate without a layer"),
        ("tarn-unheard-of", "tarn-base", "a crate without a layer"),
    ];
    for (name, used, why) in wrong {
        assert_eq!(
            uses(name, used, Purpose::Build).len(),
            1,
            "{name} -> {used}: {why}"
        );
    }
    for (name, used) in [
        ("tarn-base", "tarn-engine"),
        ("tarn-ports", "tarn-local"),
        ("tarn-engine", "tarn-cli"),
    ] {
        assert_eq!(
            uses(name, used, Purpose::Test).len(),
            1,
            "{name} -> {used} for tests"
        );
    }
}

#[test]
fn right_arrows_are_accepted() {
    let right = [
        ("tarn-ports", "tarn-base", Purpose::Build),
        ("tarn-engine", "tarn-ports", Purpose::Build),
        ("tarn-local", "tarn-sys", Purpose::Build),
        ("tarn-cli", "tarn-local", Purpose::Build),
        ("tarn-libtarn", "tarn-checkpoint", Purpose::Build),
        ("tarn-sim", "tarn-engine", Purpose::Test),
        ("tarn-engine", "tarn-sim", Purpose::Test),
        ("tarn-local", "tarn-movers", Purpose::Test),
    ];
    for (name, used, purpose) in right {
        assert_eq!(uses(name, used, purpose), Vec::<String>::new());
    }
}

/// The whole way through cargo: a workspace on disk with a wrong arrow in it.
#[test]
fn a_workspace_with_a_wrong_arrow_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
        std::fs::write(path, text).expect("file");
    };
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"base\", \"engine\"]\n",
    );
    for (name, dependencies) in [
        ("base", "tarn-engine = { path = \"../engine\" }"),
        ("engine", ""),
    ] {
        let manifest = format!(
            "[package]\nname = \"tarn-{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n{dependencies}\n"
        );
        write(&format!("{name}/Cargo.toml"), &manifest);
        write(&format!("{name}/src/lib.rs"), "");
    }
    let crates = workspace(&folder.path().join("Cargo.toml")).expect("cargo metadata");
    let found = violations(&crates);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("tarn-base (L0) -> tarn-engine (L2)"),
        "{found:?}"
    );
}
