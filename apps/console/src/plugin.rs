//! Libraries in C that programs load: each in a folder of its own beside `tarn`, with libtarn.so beside or above that.

use crate::error::{CliError, CliResult};
use anyhow::Context;
use std::env;
use std::path::{Path, PathBuf};
use tarn_types::codes::Exit;

const LIBRARY: &str = "libtarn.so";
/// The text before the version in it.
const LIBRARY_MARK: &str = "tarn-libtarn-version=";

/// A library, and how it is found.
pub struct Plugin {
    /// Its file.
    pub name: &'static str,
    /// The text before the version in it.
    pub mark: &'static str,
    /// The name of its folder.
    pub folder: &'static str,
    /// The environment variable that names such a folder.
    pub variable: &'static str,
    /// The consequence of its absence, after a comma, or nothing.
    pub without: &'static str,
    /// Text that says how to make it.
    pub made: &'static str,
}

impl Plugin {
    /// The folder of one that is of this version and finds a library of this version.
    ///
    /// # Errors
    /// When there is none.
    pub fn folder(&self) -> CliResult<PathBuf> {
        let program = env::current_exe().map_err(anyhow::Error::from)?;
        let near = program.parent().unwrap_or(Path::new("/"));
        let folders = match env::var_os(self.variable) {
            Some(folder) => vec![PathBuf::from(folder)],
            None => vec![
                near.join(self.folder),
                near.join("../lib/tarn").join(self.folder),
            ],
        };
        let Some(folder) = folders
            .iter()
            .find(|folder| folder.join(self.name).is_file())
        else {
            let named: Vec<_> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            let text = format!(
                "there is no {} in {}{}: {}, `make install` installs it beside this tarn, or {} names its folder",
                self.name,
                named.join(" or "),
                self.without,
                self.made,
                self.variable
            );
            return Err(CliError::new(Exit::NotFound, text));
        };
        let folder = folder
            .canonicalize()
            .with_context(|| format!("cannot use {}", folder.display()))?;
        // As the loader looks for it.
        let first = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let first = env::split_paths(&first).filter(|folder| !folder.as_os_str().is_empty());
        let own = [folder.join(".."), folder.join("../..")];
        let mut libraries = first.chain(own).map(|folder| folder.join(LIBRARY));
        let library = libraries.find(|library| library.is_file()).ok_or_else(|| {
            let text = format!(
                "there is no {LIBRARY} beside {} or above that: install both together",
                folder.display()
            );
            CliError::new(Exit::NotFound, text)
        })?;
        let both = [
            (folder.join(self.name), self.name, self.mark),
            (library, LIBRARY, LIBRARY_MARK),
        ];
        for (path, name, mark) in &both {
            let version = version(path, mark)?;
            if version != env!("CARGO_PKG_VERSION") {
                let text = format!(
                    "{} is {name} of tarn {version}, and this is tarn {}: install them together",
                    path.display(),
                    env!("CARGO_PKG_VERSION")
                );
                return Err(CliError::new(Exit::State, text));
            }
        }
        Ok(folder)
    }
}

/// The version in a library's file.
fn version(library: &Path, mark: &str) -> CliResult<String> {
    let bytes =
        std::fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let rest = text.find(mark).map_or("", |at| &text[at + mark.len()..]);
    let version: String = rest.chars().take_while(char::is_ascii_graphic).collect();
    Ok(if version.is_empty() {
        "an unknown version".to_owned()
    } else {
        version
    })
}
