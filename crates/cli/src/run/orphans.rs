//! `tarn data rm --orphans`: what runs that were killed have left in their workflows' folders on the tiers.
//!
//! Only folders of this state folder's workflows are looked at, on the tiers of each one's newest run, and none of a workflow
//! that a run is active of. What the catalogue lists stays, unless the time it was kept for is over: that is kept, or a run can
//! still be resumed with it.

use super::allocation::Reached;
use super::files::Files;
use super::margin::Margin;
use super::{Opening, kept, lock, open_catalogue, open_world};
use crate::args::{Cli, Isolation};
use crate::error::{CliResult, ExitWith};
use crate::print::say;
use crate::state;
use std::collections::BTreeSet;
use std::sync::Arc;
use tarn_base::codes::Exit;
use tarn_base::event::Start;
use tarn_base::layout::StateDir;
use tarn_base::nodes::Staying;
use tarn_journal::runs;
use tarn_movers::Trees;

pub(crate) fn remove(cli: &Cli) -> CliResult {
    let state = state::here(cli)?;
    let catalogue = open_catalogue(&state)?;
    let runs = catalogue.runs().exit(Exit::State)?;
    drop(catalogue);
    let names: BTreeSet<&str> = runs.iter().map(|r| r.workflow.as_str()).collect();
    for name in names {
        let newest = runs::newest(&state, Some(name)).exit(Exit::State)?;
        if let Some(newest) = newest {
            of_workflow(&state, state::started(&state, &newest.name)?)?;
        }
    }
    Ok(Exit::Success)
}

fn of_workflow(state: &StateDir, mut begun: Start) -> CliResult<()> {
    let name = begun.workflow.name.clone();
    let _lock = match lock(state, &name) {
        Err(e) if e.exit == Exit::Busy => {
            say!("{name}: a run is active, its data is its own");
            return Ok(());
        }
        lock => lock?,
    };
    let reached = match &begun.allocation {
        None => None,
        Some(job) => match Reached::with_tiers_of(&begun, state)? {
            Some(reached) => Some(reached),
            None => {
                let nodes = begun.cluster.nodes.iter().map(|n| n.name.as_str());
                say!(
                    "{name}: its newest run was on {} (job {job}); run this inside an allocation that has them",
                    nodes.collect::<Vec<_>>().join(", ")
                );
                return Ok(());
            }
        },
    };
    if let Some(reached) = &reached {
        begun.cluster = reached.cluster().clone();
        begun.allocation = Some(reached.job().to_owned());
    }
    begun.prior.clear();
    let opening = Opening {
        files: Files::default(),
        mover: Arc::new(Trees::new()),
        now: 0,
        isolation: Isolation::Auto,
        margin: Margin::new(0),
    };
    let mut world = open_world(state, &begun, opening, reached)?;
    let mut catalogue = open_catalogue(state)?;
    let mut left = kept::Left::of(&catalogue, &begun)?;
    let staying = Staying {
        protected: left.wanted(),
        ..Staying::default()
    };
    let cleaned = kept::tidy(&mut *world, &mut catalogue, &mut left, &staying)?;
    for problem in world.leave() {
        say!("warning: {problem}");
    }
    say!("{name}: {} replicas removed", cleaned.removed.len());
    Ok(())
}
