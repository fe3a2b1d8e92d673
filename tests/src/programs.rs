//! Programs of this workspace, where a test cluster's users find them.

use crate::slurm::Cluster;
use crate::tree;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    // A library that is built as a dependency is only there.
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

/// Puts programs where the commands of a cluster's users are looked for; with the C library the Python package over it, in `python`
/// of the shared folder.
///
/// # Errors
/// When one has not been built, or cannot be copied.
pub fn install(cluster: &Cluster, names: &[&str]) -> anyhow::Result<()> {
    let bin = cluster.shared().join("bin");
    std::fs::create_dir_all(&bin)?;
    if names.contains(&LIBRARY) {
        python(&cluster.shared().join("python"))?;
    }
    for name in names {
        let from = built(name)?;
        let to = bin.join(from.file_name().context("a program without a name")?);
        std::fs::copy(&from, &to).with_context(|| to.display().to_string())?;
    }
    Ok(())
}

/// Lays the Python package out in a folder, with its native library if that has been built.
///
/// # Errors
/// When files cannot be copied.
pub fn python(folder: &Path) -> anyhow::Result<()> {
    let library = built("libtarn_python.so").or_else(|_| built(LIBRARY))?;
    let built = library.parent().context("a library in no folder")?;
    let output = Command::new(tree::root().join("scripts/python.sh"))
        .args([built, folder])
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "python.sh: {errors}");
    Ok(())
}
