//! Checks of a run, and of a plan, before it begins. They are the same for both: a plan refuses everything that the run would
//! refuse.

use super::changes::{self, Looks, StepChanges};
use super::files::RunFiles;
use super::{places, prior, variables};
use crate::clock::wall;
use crate::error::{CliError, CliResult, ExitWith};
use crate::options::{IsolationArg, RunArgs};
use crate::print::message;
use crate::{cluster, workflow};
use tarn_journal::Catalogue;
use tarn_node::RereadScope;
use tarn_ports::Mover;
use tarn_spec::{Abilities, Parsed};
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::{Options, PriorData, PriorDest, PriorInstance, Start};
use tarn_types::layout::StateDir;
use tarn_types::policy::{DataMode, Order};

/// A run that is to begin: its workflow, its arguments, and where it is to run.
pub(crate) struct NewRun<'a> {
    pub(crate) parsed: &'a Parsed,
    pub(crate) files: &'a RunFiles,
    pub(crate) args: &'a RunArgs,
    pub(crate) cluster: &'a Cluster,
    /// The nodes are other machines.
    pub(crate) elsewhere: bool,
    pub(crate) state: &'a StateDir,
    pub(crate) workspace: &'a str,
    pub(crate) mover: &'a dyn Mover,
}

/// The results of earlier runs for a new one.
#[derive(Default)]
pub(crate) struct PriorResults {
    pub(crate) instances: Vec<PriorInstance>,
    pub(crate) dests: Vec<PriorDest>,
}

impl NewRun<'_> {
    /// Refuses what these nodes or this way of running cannot give, and places that cannot be used. Warns of variables that will be
    /// empty.
    pub(crate) fn check(&self) -> CliResult<()> {
        let args = self.args;
        let abilities = match (args.machine.isolation, self.elsewhere) {
            // Other machines report their abilities when the run is opened there.
            (IsolationArg::Auto, true) => Abilities {
                multi_node: Ok(()),
                shared: Ok(()),
                images: Ok(()),
                encryption: cluster::user_has_key(),
            },
            (isolation, _) => cluster::abilities(isolation),
        };
        check_abilities(self.parsed, self.cluster, &abilities)?;
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
            message!("note: a run puts no nodes to sleep: within it, energy decides like data");
        }
        places::check(w, self.workspace, self.cluster, self.state, self.mover)?;
        variables::warn_unset_variables(w, self.files);
        Ok(())
    }

    /// The results of earlier runs that this one takes over. Prints which data somebody has taken out of a `dest`.
    pub(crate) fn find_prior(&self, catalogue: &Catalogue) -> CliResult<PriorResults> {
        let w = &self.parsed.workflow;
        let instances = catalogue.prior(w, self.workspace, self.cluster, self.elsewhere);
        let instances = instances.exit(Exit::State)?;
        let dests = prior::prior_dests(catalogue, w, self.state, self.mover)?;
        prior::report_missing_dests(w, self.workspace, self.state, self.mover);
        Ok(PriorResults { instances, dests })
    }

    /// Looks at every source that a step reads.
    pub(crate) fn look_at_sources(&self, reading: RereadScope) -> Looks {
        let w = &self.parsed.workflow;
        changes::looks(w, self.state, self.workspace, reading, self.mover)
    }

    /// The changes since the newest run.
    pub(crate) fn find_changes(&self, looks: &Looks, others: &[PriorData]) -> StepChanges {
        StepChanges::since_last(self.state, self.parsed, self.files, (looks, others))
    }

    /// The first event of the run called `run`, as one on this machine.
    pub(crate) fn start(&self, run: String, prior: PriorResults, others: &[PriorData]) -> Start {
        Start {
            run,
            workspace: self.workspace.to_owned(),
            wall: wall(),
            workflow: self.parsed.workflow.clone(),
            cluster: self.cluster.clone(),
            options: Options {
                policy: self.args.policy,
                verify: self.args.verify.into(),
                cache: cache_percent(self.args, self.elsewhere),
                fail_fast: self.args.fail_fast,
            },
            prior: prior.instances,
            prior_dest: prior.dests,
            prior_data: others.to_vec(),
            allocation: None,
            sealed: false,
            pinned: Vec::new(),
            set_aside: None,
        }
    }
}

/// Refuses a workflow that needs what the nodes cannot do.
pub(super) fn check_abilities(
    parsed: &Parsed,
    cluster: &Cluster,
    abilities: &Abilities,
) -> CliResult<()> {
    tarn_spec::check_cluster(parsed, cluster, abilities).map_err(|rejected| {
        let mut error = workflow::rejected(rejected);
        error.exit = Exit::NoSpace;
        error
    })
}

/// How much of a tier may be cached data, in percent: nothing on nodes that a job has only for a time.
fn cache_percent(args: &RunArgs, elsewhere: bool) -> u8 {
    let in_job = elsewhere || std::env::var_os("SLURM_JOB_ID").is_some();
    if in_job { 0 } else { args.cache }
}
