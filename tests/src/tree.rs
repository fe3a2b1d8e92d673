//! The files of the repository.

use anyhow::Context;
use std::path::{Path, PathBuf};

/// Folders that hold nothing of ours: build outputs, the remains of the demo, git's own.
const SKIPPED: &[&str] = &["target", "demo", ".git", ".tarn", "__pycache__"];
/// Files of the repository; more means that something else was walked into.
const MAX_FILES: usize = 20_000;

/// A text file.
#[derive(Debug, Clone)]
pub struct Text {
    /// Relative to the repository's root.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every text file with one of these extensions (`""` for none), in order of their paths.
///
/// # Errors
/// When a folder or file cannot be read, or there are too many.
pub fn texts(root: &Path, extensions: &[&str]) -> anyhow::Result<Vec<Text>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in folder
            .read_dir()
            .with_context(|| format!("cannot list {}", folder.display()))?
        {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = entry.path();
            if kind.is_dir() {
                let name = entry.file_name();
                if !SKIPPED.iter().any(|s| name == *s) {
                    folders.push(path);
                }
            } else if kind.is_file() && extensions.contains(&extension(&path).as_str()) {
                let bytes = std::fs::read(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                let relative = path.strip_prefix(root)?.to_string_lossy().into_owned();
                if let Ok(text) = String::from_utf8(bytes) {
                    found.push(Text {
                        path: relative,
                        text,
                    });
                }
                anyhow::ensure!(
                    found.len() <= MAX_FILES,
                    "more than {MAX_FILES} files below {}",
                    root.display()
                );
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn extension(path: &Path) -> String {
    path.extension()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
