//! Datasets that the user has pinned (`tarn data pin`): a run keeps them, whatever the workflow file says.

use crate::error::{CliResult, ExitWith};
use std::collections::BTreeSet;
use tarn_journal::{Catalogue, StoredAt};
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::id::DataId;
use tarn_types::workflow::Keep;

/// Those of the workflow of which something pinned is stored on a tier, or was drained. The workflow file itself
/// decides for how long a dataset with `keep` stays: its pinned data stays all the same.
pub(super) fn datasets(catalogue: &Catalogue, start: &Start) -> CliResult<Vec<DataId>> {
    let rows = catalogue.replicas(&start.workflow.name, None);
    let mut rows = rows.exit(Exit::State)?;
    rows.retain(|r| {
        let is_ours = !matches!(r.at, StoredAt::External(_));
        is_ours && r.is_pinned() && r.workspace == start.workspace
    });
    let names: BTreeSet<&str> = rows.iter().map(|r| r.dataset.as_str()).collect();
    let data = (0u32..).map(DataId).zip(&start.workflow.data);
    let is_pinned = data.filter(|(id, dataset)| {
        let is_of_file = matches!(dataset.keep, Keep::For(_) | Keep::Forever);
        let is_known = start.is_pinned(*id);
        names.contains(dataset.name.as_str()) && (is_known || !is_of_file)
    });
    Ok(is_pinned.map(|(id, _)| id).collect())
}

/// The run keeps what is pinned now.
pub(crate) fn keep(catalogue: &Catalogue, start: &mut Start) -> CliResult<()> {
    let pinned = datasets(catalogue, start)?;
    start.pin(&pinned);
    Ok(())
}
