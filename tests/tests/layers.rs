//! Arrows between crates point down only.

use std::collections::BTreeSet;

use tarn_tests::layers::{Crate, Purpose, violations, workspace};
use tarn_tests::tree;

fn crates() -> Vec<Crate> {
    workspace(&tree::root().join("Cargo.toml")).expect("cargo metadata")
}

/// The errors for one more arrow between two crates of the workspace.
fn with_arrow(folder: &str, used: &str, purpose: Purpose) -> Vec<String> {
    let mut crates = crates();
    let name = |folder: &str| {
        let found = crates.iter().find(|c| c.folder == folder);
        found.unwrap_or_else(|| panic!("{folder}")).name.clone()
    };
    let (user, used) = (name(folder), name(used));
    for one in &mut crates {
        one.uses.clear();
        if one.name == user {
            one.uses.push((used.clone(), purpose));
        }
    }
    violations(&crates)
}

#[test]
fn the_workspace_keeps_its_layers() {
    let crates = crates();
    let tarn = crates.iter().find(|c| c.folder == "apps/tarn");
    let tarn = tarn.expect("the program");
    assert!(tarn.uses.iter().any(|(used, _)| used == "tarn-types"));
    assert!(crates.iter().filter(|c| c.level < 5).count() > 35);
    let found = violations(&crates);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// `fuzz/` is a workspace of its own: a dependency that a crate of this one begins or ceases to need is in both lock files.
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
        ("foundation/types", "foundation/ports", "up"),
        (
            "workflow/engine",
            "workflow/node",
            "a core that touches the world",
        ),
        ("workflow/engine", "workflow/spec", "sideways between cores"),
        ("foundation/ports", "foundation/sys", "sideways"),
        (
            "workflow/node",
            "workflow/journal",
            "sideways between adapters",
        ),
        (
            "workflow/node",
            "workflow/engine",
            "an adapter that knows a core",
        ),
        ("apps/tarn", "apps/tarnd", "sideways between programs"),
        (
            "checkpoint/objects",
            "checkpoint/session",
            "sideways between libraries",
        ),
        (
            "direct/partitions",
            "checkpoint/core",
            "a product that uses another",
        ),
        (
            "checkpoint/session",
            "direct/queue",
            "checkpoints that use more of another product than its media",
        ),
        ("apps/tarn", "tests", "a program that needs the tests"),
    ];
    for (folder, used, why) in wrong {
        let found = with_arrow(folder, used, Purpose::Build);
        assert!(!found.is_empty(), "{folder} -> {used}: {why}");
    }
    for (folder, used) in [
        ("foundation/types", "workflow/engine"),
        ("foundation/ports", "workflow/node"),
        ("workflow/engine", "apps/tarn"),
    ] {
        let found = with_arrow(folder, used, Purpose::Test);
        assert_eq!(found.len(), 1, "{folder} -> {used} for tests");
    }
}

#[test]
fn right_arrows_are_accepted() {
    let right = [
        ("foundation/ports", "foundation/types", Purpose::Build),
        ("workflow/engine", "foundation/ports", Purpose::Build),
        ("workflow/node", "foundation/sys", Purpose::Build),
        ("apps/tarn", "workflow/node", Purpose::Build),
        ("bindings/c", "checkpoint/session", Purpose::Build),
        ("checkpoint/session", "direct/media", Purpose::Build),
        ("simulator/worlds", "workflow/engine", Purpose::Test),
        ("workflow/engine", "simulator/worlds", Purpose::Test),
        ("workflow/node", "transfer/mover", Purpose::Test),
    ];
    for (folder, used, purpose) in right {
        assert_eq!(with_arrow(folder, used, purpose), Vec::<String>::new());
    }
}

/// The whole way through cargo: a workspace on disk with a wrong arrow in it, and a crate in no product.
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
        "[workspace]\nresolver = \"3\"\nmembers = [\"foundation/types\", \"workflow/engine\", \"other\"]\n",
    );
    for (path, level, dependencies) in [
        (
            "foundation/types",
            "L0",
            "engine = { path = \"../../workflow/engine\" }",
        ),
        ("workflow/engine", "L2", ""),
        ("other", "L2", ""),
    ] {
        let name = path.rsplit('/').next().expect("a name");
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\ndescription = \"{level}: x\"\n[dependencies]\n{dependencies}\n"
        );
        write(&format!("{path}/Cargo.toml"), &manifest);
        write(&format!("{path}/src/lib.rs"), "");
    }
    let crates = workspace(&folder.path().join("Cargo.toml")).expect("cargo metadata");
    let found = violations(&crates).join("\n");
    assert!(found.contains("types (L0) -> engine (L2)"), "{found}");
    assert!(
        found.contains("foundation does not use workflow/engine"),
        "{found}"
    );
    assert!(found.contains("other in other: no product"), "{found}");
}
