//! The checkpoints of this node, for `tarn ckpt`.

use super::{CheckpointLocation, printable};
use crate::error::{CliError, CliResult};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
pub(super) use tarn_checkpoint::version_catalog::{
    CatalogVersion, ReadableArena, RunCheckpoints, StagedFile,
};
use tarn_types::codes::Exit;

/// The checkpoints of a tier.
pub(super) struct TierVersionCatalog<'a> {
    place: &'a CheckpointLocation,
    version_catalog: tarn_checkpoint::version_catalog::VersionCatalog<'a>,
}

impl<'a> TierVersionCatalog<'a> {
    pub(super) fn open(place: &'a CheckpointLocation) -> CliResult<Self> {
        let version_catalog =
            tarn_checkpoint::version_catalog::VersionCatalog::open(&place.tier, &place.memory);
        let version_catalog = version_catalog.map_err(|e| {
            CliError::new(
                Exit::NotFound,
                format!(
                    "cannot read {}: {e}; --tier is the folder on the persistent tier that the program uses",
                    place.tier.display()
                ),
            )
        })?;
        Ok(Self {
            place,
            version_catalog,
        })
    }

    /// The programs of another folder too.
    pub(super) fn extend(&mut self, folder: &Path) -> CliResult<()> {
        self.version_catalog.extend(folder).map_err(|e| {
            let text = format!("cannot read {}: {e}", folder.display());
            CliError::new(Exit::NotFound, text)
        })
    }

    pub(super) fn runs(&self) -> Vec<RunCheckpoints<'_>> {
        self.version_catalog.runs()
    }

    pub(super) fn run(&self, name: &OsStr) -> CliResult<RunCheckpoints<'_>> {
        if let Some(run) = self.version_catalog.run(name) {
            return Ok(run);
        }
        let there: Vec<String> = self.runs().iter().map(PrintableName::printable).collect();
        let list = match &there[..] {
            [] => "no program has any there".into(),
            some => format!("there are those of {}", some.join(", ")),
        };
        Err(CliError::new(
            Exit::NotFound,
            format!(
                "{} has no checkpoints of `{}`: {list}",
                self.place.tier.display(),
                printable(name.as_bytes())
            ),
        ))
    }
}

/// How a program's name is printed.
pub(super) trait PrintableName {
    /// As text that may be printed in JSON.
    fn text(&self) -> String;
    /// In a line of a table.
    fn printable(&self) -> String;
}

impl PrintableName for RunCheckpoints<'_> {
    fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn printable(&self) -> String {
        printable(self.name.as_bytes())
    }
}
