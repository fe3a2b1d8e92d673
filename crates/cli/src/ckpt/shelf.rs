//! What this node has, as `tarn ckpt` asks for it.

use super::{Place, printable};
use crate::error::{CliError, CliResult};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tarn_base::codes::Exit;
pub(super) use tarn_checkpoint::shelf::{Found, Held, Run, Staged};

/// The checkpoints of a tier.
pub(super) struct Shelf<'a> {
    place: &'a Place,
    shelf: tarn_checkpoint::shelf::Shelf<'a>,
}

impl<'a> Shelf<'a> {
    pub(super) fn open(place: &'a Place) -> CliResult<Self> {
        let shelf = tarn_checkpoint::shelf::Shelf::open(&place.tier, &place.memory);
        let shelf = shelf.map_err(|e| {
            CliError::new(
                Exit::NotFound,
                format!(
                    "cannot read {}: {e}; --tier is the folder on the persistent tier that the program uses",
                    place.tier.display()
                ),
            )
        })?;
        Ok(Self { place, shelf })
    }

    /// The programs of another folder too.
    pub(super) fn extend(&mut self, folder: &Path) -> CliResult<()> {
        self.shelf.extend(folder).map_err(|e| {
            let text = format!("cannot read {}: {e}", folder.display());
            CliError::new(Exit::NotFound, text)
        })
    }

    pub(super) fn runs(&self) -> Vec<Run<'_>> {
        self.shelf.runs()
    }

    pub(super) fn run(&self, name: &OsStr) -> CliResult<Run<'_>> {
        if let Some(run) = self.shelf.run(name) {
            return Ok(run);
        }
        let there: Vec<String> = self.runs().iter().map(Named::printable).collect();
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
pub(super) trait Named {
    /// As text that may be printed in JSON.
    fn text(&self) -> String;
    /// In a line of a table.
    fn printable(&self) -> String;
}

impl Named for Run<'_> {
    fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn printable(&self) -> String {
        printable(self.name.as_bytes())
    }
}
