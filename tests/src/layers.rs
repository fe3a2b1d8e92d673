//! The layers: arrows point down only.

use std::collections::BTreeMap;

/// Every crate of the workspace that may exist, with its layer. A crate that is not here is refused: whoever adds
/// one decides where it stands.
pub const LAYERS: &[(u8, &[&str])] = &[
    (0, &["tarn-base"]),
    (
        1,
        &[
            "tarn-ports",
            "tarn-proto",
            "tarn-sys",
            "tarn-ring",
            "tarn-seal",
        ],
    ),
    (
        2,
        &[
            "tarn-flow",
            "tarn-engine",
            "tarn-tasks",
            "tarn-phx",
            "tarn-dsa",
            "tarn-modes",
            "tarn-site",
        ],
    ),
    (
        3,
        &[
            "tarn-control",
            "tarn-allocation",
            "tarn-keyring",
            "tarn-local",
            "tarn-slurm",
            "tarn-sim",
            "tarn-movers",
            "tarn-media",
            "tarn-ranks",
            "tarn-s3",
            "tarn-fabric",
            "tarn-client",
            "tarn-track",
            "tarn-journal",
            "tarn-manual",
            "tarn-munge",
            "tarn-power",
            "tarn-report",
            "tarn-fault",
        ],
    ),
    (
        4,
        &[
            "tarn-cli",
            "tarn-bench",
            "tarn-console",
            "tarn-daemon",
            "tarn-checkpoint",
            "tarn-objects",
            "tarn-partitions",
            "tarn-libtarn",
            "tarn-python",
        ],
    ),
    (TESTS, &["tarn-fuzz", "tarn-tests"]),
];

/// Above everything: nothing but tests.
const TESTS: u8 = 5;
/// Sans-I/O logic.
const CORES: u8 = 2;
/// Adapters touch the world and know nothing of cores or of each other: only the roots bring them together.
const ADAPTERS: u8 = 3;
/// Roots bring adapters and cores together.
const ROOTS: u8 = 4;
/// The roots that are libraries of Rust: the other roots may use them, so that an interface is put together once for all languages.
const LIBRARIES: [&str; 4] = [
    "tarn-checkpoint",
    "tarn-console",
    "tarn-objects",
    "tarn-partitions",
];

/// What a dependency is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The crate itself, or its build script.
    Build,
    /// Its tests only.
    Test,
}

/// A crate with its dependencies within the workspace.
#[derive(Debug, Clone)]
pub struct Crate {
    /// Package name.
    pub name: String,
    /// Package names of what it depends on.
    pub uses: Vec<(String, Purpose)>,
}

/// The layer of a crate.
fn layer(name: &str) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(_, names)| names.contains(&name))
        .map(|(layer, _)| *layer)
}

/// Every arrow that does not point down, and every crate without a layer.
///
/// A crate uses lower layers only; an adapter only layers 0 and 1. The tests of a core or an adapter may use any core or
/// adapter, so that an engine is tested in a simulated world and a world with a real mover; those of the layers below
/// may use their own layer. Two roots are libraries, and the others may use them.
pub fn violations(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    for user in crates {
        let Some(from) = layer(&user.name) else {
            found.push(format!(
                "{}: has no layer; give it one in tests/src/layers.rs",
                user.name
            ));
            continue;
        };
        for (used, purpose) in &user.uses {
            let Some(to) = layer(used) else {
                found.push(format!("{} -> {used}: {used} has no layer", user.name));
                continue;
            };
            let allowed = match purpose {
                Purpose::Test if from >= CORES => to <= from.max(ADAPTERS),
                Purpose::Test => to <= from,
                Purpose::Build if LIBRARIES.contains(&used.as_str()) => {
                    from == ROOTS && !LIBRARIES.contains(&user.name.as_str())
                }
                Purpose::Build if from == ADAPTERS => to <= 1,
                Purpose::Build => to < from,
            };
            if !allowed {
                let test = if *purpose == Purpose::Test {
                    " (for its tests)"
                } else {
                    ""
                };
                found.push(format!(
                    "{} (L{from}) -> {used} (L{to}){test}: arrows point down only",
                    user.name
                ));
            }
        }
    }
    found
}

/// The crates of a workspace, from `cargo metadata`.
///
/// # Errors
/// When cargo cannot read the workspace.
pub fn workspace(manifest: &std::path::Path) -> anyhow::Result<Vec<Crate>> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()?;
    let names: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|p| (p.name.to_string(), ()))
        .collect();
    let crates = metadata.packages.iter().map(|package| Crate {
        name: package.name.to_string(),
        uses: package
            .dependencies
            .iter()
            .filter(|d| d.path.is_some() || names.contains_key(&d.name))
            .map(|d| {
                let test = d.kind == cargo_metadata::DependencyKind::Development;
                (
                    d.name.clone(),
                    if test { Purpose::Test } else { Purpose::Build },
                )
            })
            .collect(),
    });
    Ok(crates.collect())
}
