//! The planner's promise to an ordinary job, as a file: it outlives the controller. docs/internals/site.md, "The promise".

use anyhow::{Context, bail};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tarn_journal::lines::sync_folder;
use tarn_site_planner::SitePromise;

/// The first line: format and version.
const FORMAT: &str = "tarn-promise 1";
/// Bytes of the file that are read.
const MAX_BYTES: u64 = 4096;

/// The file in the state folder, and its content.
pub(super) struct PromiseFile {
    folder: PathBuf,
    written: Option<SitePromise>,
    has_failed: bool,
}

impl PromiseFile {
    pub(super) fn new(state: &Path) -> Self {
        Self {
            folder: state.to_owned(),
            written: None,
            has_failed: false,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("plan.promise")
    }

    /// The promise of an earlier controller. A file that cannot be read has none.
    pub(super) fn read(&mut self) -> Option<SitePromise> {
        let path = self.path();
        let read = read(&path).and_then(|text| parse(&text));
        self.written = read.unwrap_or_else(|e| {
            tracing::warn!(
                "the begin that an ordinary job was promised is not known: {}: {e:#}",
                path.display()
            );
            None
        });
        self.written
    }

    /// Writes the promise if it is another one. A file that cannot be written stops nothing.
    pub(super) fn keep(&mut self, promise: Option<SitePromise>) {
        if promise == self.written {
            return;
        }
        match self.write(promise) {
            Ok(()) => {
                self.written = promise;
                self.has_failed = false;
            }
            Err(e) => {
                if !self.has_failed {
                    let path = self.path();
                    tracing::warn!("a promise is not kept: {}: {e}", path.display());
                }
                self.has_failed = true;
            }
        }
    }

    fn write(&self, promise: Option<SitePromise>) -> io::Result<()> {
        let fresh = self.folder.join("plan.promise.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&fresh)?;
        file.write_all(text(promise).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, self.path())?;
        sync_folder(&self.folder)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(text(None)),
        file => file?,
    };
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn text(promise: Option<SitePromise>) -> String {
    let Some(SitePromise {
        job,
        submitted,
        begin,
    }) = promise
    else {
        return format!("{FORMAT}\n");
    };
    format!("{FORMAT}\njob={job} submitted={submitted} begin={begin}\n")
}

/// Fields that it does not know are skipped.
fn parse(text: &str) -> anyhow::Result<Option<SitePromise>> {
    let mut lines = text.lines();
    if lines.next() != Some(FORMAT) {
        bail!("its first line is not `{FORMAT}`");
    }
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let field = |name: &str| -> anyhow::Result<u64> {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        let value = fields.find(|(key, _)| *key == name).map(|(_, value)| value);
        value
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("its field `{name}` is no number"))
    };
    Ok(Some(SitePromise {
        job: u32::try_from(field("job")?)?,
        submitted: field("submitted")?,
        begin: field("begin")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: SitePromise = SitePromise {
        job: 17,
        submitted: 1_700_000_000_000_000_000,
        begin: 1_700_000_900_000_000_000,
    };

    #[test]
    fn the_next_controller_reads_what_this_one_kept() {
        let folder = tempfile::tempdir().unwrap();
        let read = || PromiseFile::new(folder.path()).read();
        let mut file = PromiseFile::new(folder.path());
        assert_eq!(file.read(), None);
        file.keep(Some(PROMISE));
        assert_eq!(read(), Some(PROMISE));
        let text = std::fs::read_to_string(folder.path().join("plan.promise")).unwrap();
        let expected =
            "tarn-promise 1\njob=17 submitted=1700000000000000000 begin=1700000900000000000\n";
        assert_eq!(text, expected);
        file.keep(None);
        assert_eq!(read(), None);
    }

    #[test]
    fn a_file_of_another_format_or_a_damaged_one_is_no_promise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.promise");
        for text in [
            "",
            "tarn-promise 2\njob=17 submitted=1 begin=2\n",
            "tarn-promise 1\njob=17 submitted=1\n",
            "tarn-promise 1\njob=99999999999 submitted=1 begin=2\n",
            "tarn-promise 1\njob=-1 submitted=1 begin=2\n",
        ] {
            std::fs::write(&path, text).unwrap();
            let read = PromiseFile::new(folder.path()).read();
            assert_eq!(read, None, "{text:?}");
        }
        std::fs::write(&path, [0xff; 9000]).unwrap();
        assert_eq!(PromiseFile::new(folder.path()).read(), None);
        std::fs::write(&path, "tarn-promise 1\nbegin=2 more=x job=1 submitted=0\n").unwrap();
        let read = PromiseFile::new(folder.path()).read();
        assert_eq!(read.map(|promise| promise.begin), Some(2));
    }
}
