//! Programs of this workspace, where a test cluster's users find them.

use crate::slurm::Cluster;
use crate::tree;
use anyhow::Context;
use std::path::PathBuf;

/// The C library.
const LIBRARY: &str = "libtarn.so";

/// A program that this workspace has built beside its tests: `tarn`, `tarnd`, `examples/...`. A test of the whole workspace
/// builds all of them first.
///
/// # Errors
/// When it is not there.
pub fn built(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    // <folder>/deps/<test>
    let folder = test
        .ancestors()
        .nth(2)
        .context("a test in no build folder")?;
    // A library that is built as a dependency only lies among these.
    let places = [folder.join(name), folder.join("deps").join(name)];
    let found = places.iter().find(|p| p.is_file());
    let program = found.unwrap_or(&places[0]).clone();
    anyhow::ensure!(
        program.is_file(),
        "{} is not there: `cargo test --workspace` builds it, or `cargo build --workspace --all-targets`",
        program.display()
    );
    Ok(program)
}

/// Puts programs where the commands of a cluster's users are looked for; with the C library the Python module over it.
///
/// # Errors
/// When one has not been built, or cannot be copied.
pub fn install(cluster: &Cluster, names: &[&str]) -> anyhow::Result<()> {
    let bin = cluster.shared().join("bin");
    std::fs::create_dir_all(&bin)?;
    let binding = tree::root().join("bindings/python/tarn.py");
    let binding = names.contains(&LIBRARY).then_some(Ok(binding));
    for from in names.iter().map(|name| built(name)).chain(binding) {
        let from = from?;
        let to = bin.join(from.file_name().context("a program without a name")?);
        std::fs::copy(&from, &to).with_context(|| to.display().to_string())?;
    }
    Ok(())
}
