//! The mode that `tarn slurm mode` has set, as a file in the controller's state folder. It holds until the configuration
//! has another mode than it had then: the last word counts. docs/internals/site.md, "The mode".

use super::mode::SiteMode;
use anyhow::{Context, bail};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tarn_journal::lines::sync_folder;

/// The first line: format and version.
const FORMAT: &str = "tarn-mode 1";
/// Bytes of the file that are read.
const MAX_BYTES: u64 = 4096;

fn path(state: &Path) -> PathBuf {
    state.join("mode")
}

/// The mode of a controller that starts with this one in its configuration.
pub(super) fn chosen(state: &Path, configured: SiteMode) -> anyhow::Result<SiteMode> {
    let path = path(state);
    let about = || {
        format!(
            "{}: to have the mode of site.toml, remove this file",
            path.display()
        )
    };
    let mut text = String::new();
    match File::open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(configured),
        file => {
            let file = file.with_context(about)?.take(MAX_BYTES);
            { file }.read_to_string(&mut text).with_context(about)?;
        }
    }
    let (set, then) = parse(&text).with_context(about)?;
    if then != configured {
        // It is over for good, also when the configuration goes back to what it was.
        std::fs::remove_file(&path).with_context(about)?;
        sync_folder(state).with_context(about)?;
    } else if set != configured {
        tracing::info!(
            "mode {}, as `tarn slurm mode` has set it; the configuration has {}",
            set.name(),
            configured.name()
        );
    }
    Ok(if then == configured { set } else { configured })
}

/// Keeps the mode that was set while the configuration had this one.
pub(super) fn keep(state: &Path, set: SiteMode, configured: SiteMode) -> io::Result<()> {
    let fresh = state.join("mode.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&fresh)?;
    let (set, then) = (set.name(), configured.name());
    file.write_all(format!("{FORMAT}\nmode={set} configured={then}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path(state))?;
    sync_folder(state)
}

/// Fields that it does not know are skipped.
fn parse(text: &str) -> anyhow::Result<(SiteMode, SiteMode)> {
    let mut lines = text.lines();
    if lines.next() != Some(FORMAT) {
        bail!("its first line is not `{FORMAT}`");
    }
    let line = lines.next().unwrap_or_default();
    let field = |name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        let value = fields.find(|(key, _)| *key == name).map(|(_, value)| value);
        value
            .and_then(SiteMode::of_name)
            .with_context(|| format!("its field `{name}` is no mode"))
    };
    Ok((field("mode")?, field("configured")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use SiteMode::{Advise, Drive, Observe};

    #[test]
    fn the_last_word_counts() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = |configured| chosen(folder.path(), configured).unwrap();
        assert_eq!(chosen(Drive), Drive);
        keep(folder.path(), Observe, Drive).unwrap();
        assert_eq!(chosen(Drive), Observe);
        // Somebody has edited site.toml since.
        assert_eq!(chosen(Advise), Advise);
        assert_eq!(chosen(Drive), Drive, "the command is older than that");
        keep(folder.path(), Drive, Drive).unwrap();
        assert_eq!(chosen(Drive), Drive);
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "tarn-mode 2\n", "tarn-mode 1\nmode=drive\n"] {
            std::fs::write(path(folder.path()), text).unwrap();
            let why = format!("{:#}", chosen(folder.path(), Drive).unwrap_err());
            assert!(why.contains("/mode: ") && why.contains("remove"), "{why}");
        }
    }
}
