//! Checks, before a run starts, of the places that it reads and writes: it refuses places that are missing, that overlap
//! through links, or that cannot be written.

use crate::error::{CliError, CliResult};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tarn_node::location::{FolderIdentity, FolderLocation};
use tarn_ports::{Control, Mover, MoverError};
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::id::DataId;
use tarn_types::layout::StateDir;
use tarn_types::object::is_object;
use tarn_types::workflow::{Foreach, Workflow};

/// Refuses a workflow whose places cannot be used, on this cluster and with this state folder.
pub(super) fn check(
    workflow: &Workflow,
    workspace: &str,
    cluster: &Cluster,
    state: &StateDir,
    mover: &dyn Mover,
) -> CliResult<()> {
    sources_exist(workflow, mover)?;
    let places = RunLocation::all(workflow, workspace, cluster, state);
    if let Some(why) = first_clash(&places) {
        return Err(CliError::new(Exit::InvalidWorkflow, why));
    }
    for dataset in &workflow.data {
        if let Some(dest) = &dataset.dest {
            tarn_node::check_destination(state, workspace, &dataset.name, dest, mover)
                .and_then(|()| tarn_node::probe_destination(workspace, &dataset.name, dest))
                .map_err(|e| CliError::new(Exit::InvalidWorkflow, e))?;
        }
    }
    takes(workflow, workspace, mover)
}

/// An object store that is `external` must take what goes there: when tiers are full, or the run fails, it is too late.
pub(super) fn takes(workflow: &Workflow, workspace: &str, mover: &dyn Mover) -> CliResult<()> {
    let Some(external) = workflow.external.as_deref().filter(|e| is_object(e)) else {
        return Ok(());
    };
    let probe = external.join(format!("rescued-{workspace}"));
    mover
        .may_deliver(&probe, workspace, &Control::default())
        .map_err(|e| {
            let text = format!("`external` ({}) cannot be used: {e}", external.display());
            CliError::new(Exit::InvalidWorkflow, text)
        })
}

/// A source that some step reads must be there: a link that leads nowhere is as missing as nothing at all.
fn sources_exist(workflow: &Workflow, mover: &dyn Mover) -> CliResult<()> {
    let mut used: BTreeSet<DataId> = BTreeSet::new();
    for step in &workflow.steps {
        used.extend(step.uses.iter().map(|u| u.data));
        if let Some(Foreach::Entries { data, .. }) = &step.foreach {
            used.insert(*data);
        }
    }
    for dataset in used.iter().map(|d| workflow.dataset(*d)) {
        let Some(source) = &dataset.source else {
            continue;
        };
        let there = if is_object(source) {
            mover.may_fetch(source, &Control::default()).map_err(
                |MoverError { failure: f, .. }| {
                    format!(
                        "the source of dataset `{}` cannot be used: {}",
                        dataset.name, f.message
                    )
                },
            )
        } else {
            tarn_node::check_source(&dataset.name, source).map_err(|e| e.message)
        };
        there.map_err(|why| CliError::new(Exit::InvalidWorkflow, why))?;
    }
    Ok(())
}

/// The first place that is, or is in, one that it must be apart from. Looked up by name: a workflow may have very many.
fn first_clash(places: &[RunLocation<'_>]) -> Option<String> {
    let mut named: BTreeMap<FolderIdentity, BTreeMap<LocationPurpose, usize>> = BTreeMap::new();
    for (at, place) in places.iter().enumerate() {
        for name in place.real.names() {
            named
                .entry(name)
                .or_default()
                .entry(place.purpose)
                .or_insert(at);
        }
    }
    places.iter().enumerate().find_map(|(at, inner)| {
        let own = inner.real.names().map(|name| (name, "is"));
        let above = inner.real.names_above().map(|name| (name, "is inside"));
        own.chain(above).find_map(|(name, how)| {
            let outer = named.get(&name)?.values().filter(|o| **o != at);
            let clash = |o: &usize| inner.clash(&places[*o], how);
            outer.filter_map(clash).next()
        })
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LocationPurpose {
    Source,
    Dest,
    External,
    State,
    Tier,
    Folder,
}

struct RunLocation<'a> {
    purpose: LocationPurpose,
    /// The dataset, where there is one.
    name: &'a str,
    shown: &'a Path,
    real: FolderLocation,
}

impl<'a> RunLocation<'a> {
    fn all(
        workflow: &'a Workflow,
        workspace: &str,
        cluster: &'a Cluster,
        state: &'a StateDir,
    ) -> Vec<Self> {
        let place = |purpose, name, shown: &'a Path| Self {
            purpose,
            name,
            shown,
            real: FolderLocation::of(shown),
        };
        let mut all = vec![
            place(LocationPurpose::State, "", &state.0),
            place(LocationPurpose::Folder, "", &workflow.folder),
        ];
        for dataset in &workflow.data {
            let both = [
                (LocationPurpose::Source, &dataset.source),
                (LocationPurpose::Dest, &dataset.dest),
            ];
            for (purpose, path) in both {
                all.extend(path.iter().map(|p| place(purpose, &dataset.name, p)));
            }
        }
        let external = workflow.external.iter();
        all.extend(external.map(|e| place(LocationPurpose::External, "", e)));
        let roots: BTreeSet<&Path> = cluster
            .nodes
            .iter()
            .flat_map(|n| &n.tiers)
            // Of its own making, and perhaps in the state folder.
            .filter(|t| !t.elsewhere())
            .map(|t| t.root.as_path())
            .collect();
        // Beside other things on a tier's file system is only what belongs to this workspace.
        all.extend(roots.into_iter().map(|root| Self {
            real: FolderLocation::of(&root.join(workspace)),
            ..place(LocationPurpose::Tier, "", root)
        }));
        all
    }

    fn title(&self) -> String {
        let shown = self.shown.display();
        match self.purpose {
            LocationPurpose::Source => format!("the source of dataset `{}` ({shown})", self.name),
            LocationPurpose::Dest => format!("the dest of dataset `{}` ({shown})", self.name),
            LocationPurpose::External => format!("`external` ({shown})"),
            LocationPurpose::State => format!("the state folder ({shown})"),
            LocationPurpose::Tier => format!("this workflow's folder on the tier at {shown}"),
            LocationPurpose::Folder => format!("the folder of the workflow file ({shown})"),
        }
    }

    /// Why this place may not be the other, or in it, as it is.
    fn clash(&self, outer: &Self, how: &str) -> Option<String> {
        use LocationPurpose::{Dest, External, Folder, Source, State, Tier};
        match (self.purpose, outer.purpose) {
            // It is replaced as a whole.
            (_, Dest) => {}
            // It would change while it is read.
            (Dest | External | State | Tier, Source) => {}
            // tarn keeps and removes there what is its own.
            (Source | Dest | External, State | Tier) => {}
            (_, Source | State | Tier | External | Folder) => return None,
        }
        let remedy = match (self.purpose, outer.purpose) {
            (State, Source) => {
                "tarn would read what it writes: put the data into a separate folder below, and name that as `source` \
                 (or keep the state elsewhere: --state DIR)"
            }
            (Tier, Source) => "tarn would read what it writes: choose another --tier NAME=PATH",
            _ => {
                "tarn's output must not overlap other paths that it reads or writes: choose another path"
            }
        };
        Some(format!(
            "{} {how} {}; {remedy}",
            self.title(),
            outer.title()
        ))
    }
}
