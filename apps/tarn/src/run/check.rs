//! What is looked at before a run, and before a plan, begins. It is one function for both: a plan refuses what the run would refuse.

use super::files::RunFiles;
use super::{places, variables};
use crate::error::{CliError, CliResult};
use crate::options::{IsolationArg, RunArgs};
use crate::print::say;
use crate::{cluster, workflow};
use tarn_ports::Mover;
use tarn_spec::{Abilities, Parsed};
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::layout::StateDir;
use tarn_types::policy::{DataMode, Order};

/// A workflow, and where it is to run.
pub(crate) struct Check<'a> {
    pub(crate) parsed: &'a Parsed,
    pub(crate) files: &'a RunFiles,
    pub(crate) cluster: &'a Cluster,
    /// The nodes are other machines.
    pub(crate) elsewhere: bool,
    pub(crate) state: &'a StateDir,
    pub(crate) workspace: &'a str,
    pub(crate) mover: &'a dyn Mover,
}

impl Check<'_> {
    /// Refuses what these nodes or this way of running cannot give, and places that cannot be used. Warns of variables that will be
    /// empty.
    pub(crate) fn check(&self, args: &RunArgs) -> CliResult<()> {
        let abilities = match (args.machine.isolation, self.elsewhere) {
            // What other machines can do, they say when the run is opened there.
            (IsolationArg::Auto, true) => Abilities {
                multi_node: Ok(()),
                shared: Ok(()),
                images: Ok(()),
                encryption: cluster::user_has_key(),
            },
            (isolation, _) => cluster::abilities(isolation),
        };
        able(self.parsed, self.cluster, &abilities)?;
        let w = &self.parsed.workflow;
        let homeless = tarn_spec::needs_external(w);
        let policy = args.policy;
        if policy.data_mode != DataMode::Keep && w.external.is_none() && !homeless.is_empty() {
            let names: Vec<_> = homeless
                .iter()
                .map(|d| w.dataset(*d).name.as_str())
                .collect();
            return Err(CliError::new(
                Exit::InvalidWorkflow,
                format!(
                    "--policy {policy} has nowhere to put {}; add `external = DIR` at the top of the workflow file",
                    names.join(", ")
                ),
            ));
        }
        if policy.order == Order::Energy {
            say!("note: a run puts no nodes to sleep: within it, energy decides like data");
        }
        places::check(w, self.workspace, self.cluster, self.state, self.mover)?;
        variables::warn_unset_variables(w, self.files);
        Ok(())
    }
}

pub(super) fn able(parsed: &Parsed, cluster: &Cluster, abilities: &Abilities) -> CliResult<()> {
    tarn_spec::check_cluster(parsed, cluster, abilities).map_err(|rejected| {
        let mut error = workflow::rejected(rejected);
        error.exit = Exit::NoRoom;
        error
    })
}
