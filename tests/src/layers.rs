//! The layers: arrows point down only, from product to product and from level to level.
//!
//! The folder of a crate gives its product ([`PRODUCTS`]). Its description begins with its level: `L0` pure vocabulary,
//! `L1` interfaces, `L2` cores without I/O, `L3` adapters, `L4` their composition, `L5` tests.

use anyhow::Context;
use cargo_metadata::{DependencyKind, TargetKind};
use std::path::Path;

/// Each product (a folder at the root), and which products its crates may use besides their own.
pub const PRODUCTS: &[(&str, &[&str])] = &[
    ("foundation", &[]),
    ("transfer", &["foundation"]),
    ("direct", &["foundation", "transfer"]),
    ("checkpoint", &["foundation", "transfer", "direct/media"]),
    ("services", &["foundation", "transfer"]),
    ("simulator", &["foundation", "transfer"]),
    ("workflow", &["foundation", "transfer"]),
    (
        "bindings",
        &["foundation", "transfer", "direct", "checkpoint"],
    ),
    (
        "apps",
        &[
            "foundation",
            "transfer",
            "direct",
            "checkpoint",
            "services",
            "simulator",
            "workflow",
        ],
    ),
    (
        "tests",
        &[
            "foundation",
            "transfer",
            "direct",
            "checkpoint",
            "services",
            "simulator",
            "workflow",
        ],
    ),
];

/// Sans-I/O logic.
const CORES: u8 = 2;
/// Adapters touch the world and know nothing of cores or of each other: only the roots bring them together.
const ADAPTERS: u8 = 3;
/// Roots bring adapters and cores together.
const ROOTS: u8 = 4;

/// The purpose of a dependency.
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
    /// Its folder, from the repository's root: `checkpoint/core`.
    pub folder: String,
    /// The level in its description; 5 without one.
    pub level: u8,
    /// Whether it is a library of Rust and nothing else. Other roots may use such a root, so that an interface is put together once for
    /// all languages.
    pub is_library: bool,
    /// Package names of its dependencies.
    pub uses: Vec<(String, Purpose)>,
}

impl Crate {
    fn product(&self) -> &str {
        self.folder.split('/').next().unwrap_or_default()
    }

    /// Whether the product of this crate may use the other crate.
    fn may_use_product_of(&self, used: &Self) -> bool {
        let own = PRODUCTS.iter().find(|(name, _)| *name == self.product());
        let allowed = own.map_or(&[][..], |(_, allowed)| allowed);
        self.product() == used.product()
            || allowed
                .iter()
                .any(|name| *name == used.product() || *name == used.folder)
    }

    /// Whether the level of this crate may use the other crate.
    ///
    /// A crate uses lower levels only; an adapter only levels 0 and 1. The tests of a core or an adapter may use any core or adapter, so
    /// that an engine is tested in a simulated world and a world with a real mover; those of the levels below may use their own level.
    fn may_use_level_of(&self, used: &Self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Test if self.level >= CORES => used.level <= self.level.max(ADAPTERS),
            Purpose::Test => used.level <= self.level,
            Purpose::Build if used.level == ROOTS && used.is_library => {
                self.level == ROOTS && !self.is_library
            }
            Purpose::Build if self.level == ADAPTERS => used.level <= 1,
            Purpose::Build => used.level < self.level,
        }
    }
}

/// Every arrow that does not point down, and every crate outside of the products.
pub fn violations(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    for user in crates {
        if !PRODUCTS.iter().any(|(name, _)| *name == user.product()) {
            found.push(format!(
                "{} in {}: no product; the folders of products are in tests/src/layers.rs",
                user.name, user.folder
            ));
            continue;
        }
        for (name, purpose) in &user.uses {
            let Some(used) = crates.iter().find(|c| c.name == *name) else {
                found.push(format!("{} -> {name}: no such crate", user.name));
                continue;
            };
            let test = if *purpose == Purpose::Test {
                " (for its tests)"
            } else {
                ""
            };
            if !user.may_use_level_of(used, *purpose) {
                found.push(format!(
                    "{} (L{}) -> {name} (L{}){test}: arrows point down only",
                    user.name, user.level, used.level
                ));
            }
            if *purpose == Purpose::Build && !user.may_use_product_of(used) {
                found.push(format!(
                    "{} -> {name}: {} does not use {}",
                    user.folder,
                    user.product(),
                    used.folder
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
pub fn workspace(manifest: &Path) -> anyhow::Result<Vec<Crate>> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()?;
    let is_ours = |name: &str| metadata.packages.iter().any(|p| *p.name == *name);
    let read = |package: &cargo_metadata::Package| {
        let folder = package.manifest_path.parent().context("a folder")?;
        let folder = folder.strip_prefix(&metadata.workspace_root)?;
        let description = package.description.as_deref().unwrap_or_default();
        let level = description
            .strip_prefix('L')
            .and_then(|d| d.split_once(':'));
        let level = level.and_then(|(level, _)| level.parse().ok());
        let mut kinds = package
            .targets
            .iter()
            .filter(|t| !t.is_test() && !t.is_example() && !t.is_custom_build())
            .flat_map(|t| &t.kind);
        Ok(Crate {
            name: package.name.to_string(),
            folder: folder.to_string(),
            level: level.unwrap_or(5),
            is_library: kinds.all(|kind| *kind == TargetKind::Lib),
            uses: package
                .dependencies
                .iter()
                .filter(|d| d.path.is_some() || is_ours(&d.name))
                .map(|d| {
                    let is_test = d.kind == DependencyKind::Development;
                    let purpose = if is_test {
                        Purpose::Test
                    } else {
                        Purpose::Build
                    };
                    (d.name.clone(), purpose)
                })
                .collect(),
        })
    };
    metadata.packages.iter().map(read).collect()
}
