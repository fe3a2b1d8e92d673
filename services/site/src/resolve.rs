//! Which versions a job reads and makes.

use crate::checkpoints::restart_of;
use crate::model::catalog::{Catalog, VersionKey, VersionState};
use crate::model::job::{Makes, Reads, SiteJob, SiteJobPhase};
use crate::partitions::partitions_of;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{JobSubmission, Owner, SlurmJobId, is_name};
use tarn_types::bounds::MAX_NAME_BYTES;
use tarn_types::named::Whose;
use tarn_types::units::Time;
use tarn_types::workflow::{self, Distribution, OnFailure, Role};

/// A job's script, and the state when it is taken in. Nothing is changed.
pub(crate) struct Resolution<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) jobs: &'a BTreeMap<SlurmJobId, SiteJob>,
    pub(crate) job: SlurmJobId,
    pub(crate) submitted: &'a JobSubmission,
    pub(crate) now: Time,
}

impl Resolution<'_> {
    /// Finds out which versions a job reads and makes. Changes nothing.
    pub(crate) fn resolve(&self) -> Result<SiteJob, RequestError> {
        let (job, submitted) = (self.job, self.submitted);
        let workflow = &submitted.workflow;
        let [step] = &workflow.steps[..] else {
            let text = "a job's script is one step";
            return Err(RequestError::new(Code::Invalid, text));
        };
        let makes = step.uses.iter().any(|u| u.role != Role::In);
        if step.foreach.is_some() && makes {
            let text = "the tasks of a job array cannot make datasets yet, only read them: use separate jobs for `out` and `inout`";
            return Err(RequestError::new(Code::Unsupported, text));
        }
        let owner = Owner::User(submitted.user);
        check_name("workflow", &workflow.name)?;
        let prior = submitted.chain.as_ref().and_then(|chain| chain.prior);
        let name = match (prior, submitted.is_alone) {
            (Some(prior), _) => self.continued_workflow(prior)?,
            // Two runs of one script that names no workflow have nothing to do with each other.
            (None, true) => alone(&workflow.name, job),
            (None, false) => workflow.name.clone(),
        };
        let mut state = SiteJob {
            user: submitted.user,
            group: submitted.group,
            groups: submitted.groups.clone(),
            owner,
            workflow: name,
            beside: prior.filter(|_| submitted.chain.as_ref().is_some_and(|c| c.same_nodes)),
            phase: SiteJobPhase::Queued,
            is_reported: false,
            absences: 0,
            is_leaving: false,
            excludes: submitted.excludes.clone(),
            ahead: Vec::new(),
            is_bringing: false,
            was_called: false,
            tasks: step.tasks,
            wants: step.nodes,
            reads: Vec::new(),
            makes: Vec::new(),
            partitions: partitions_of(workflow)?,
            restart: None,
            has_wish: submitted.has_wish,
            is_again: false,
            put_back: None,
            exported: BTreeMap::new(),
            moves: 0,
            nodes: Vec::new(),
            is_well: false,
            done: BTreeSet::new(),
            tries: BTreeMap::new(),
            history: Vec::new(),
            waits: None,
            began: None,
            changed: self.now,
        };
        state.restart = restart_of(job, submitted, &state.workflow)?;
        for used in &step.uses {
            let dataset = workflow
                .data
                .get(used.data.at())
                .ok_or_else(|| RequestError::new(Code::Invalid, "a use of no dataset"))?;
            self.resolve_use(dataset, used, &mut state)?;
        }
        Ok(state)
    }

    /// The workflow that a job continues, as another one of its user's began it.
    fn continued_workflow(&self, prior: SlurmJobId) -> Result<String, RequestError> {
        let submitted = self.submitted;
        let refuse = |code, text: String| Err(RequestError::new(code, text));
        match self.jobs.get(&prior) {
            None => refuse(
                Code::NotFound,
                format!(
                    "job {prior}, whose workflow it continues, is not known: it was not part of one, or ended more than a day ago"
                ),
            ),
            Some(known) if known.user != submitted.user => refuse(
                Code::Denied,
                format!("job {prior}, whose workflow it continues, is somebody else's"),
            ),
            Some(known) if !submitted.is_alone && submitted.workflow.name != known.workflow => {
                refuse(
                    Code::Invalid,
                    format!(
                        "its `name` is `{}`, but job {prior} is of workflow `{}`: leave `name` out",
                        submitted.workflow.name, known.workflow
                    ),
                )
            }
            Some(known) => Ok(known.workflow.clone()),
        }
    }

    /// Adds to a job its use of one dataset: as input, output, or both.
    fn resolve_use(
        &self,
        dataset: &workflow::Dataset,
        used: &workflow::DatasetUse,
        state: &mut SiteJob,
    ) -> Result<(), RequestError> {
        check_use(dataset, used)?;
        let key = self.whose(dataset, used.role, state)?;
        let latest = self.latest(&key, used.role, state);
        let latest = latest.or(dataset.source.as_ref().map(|_| 0));
        let read = match (used.role, latest) {
            (Role::Out, _) => None,
            (_, Some(version)) => Some(VersionKey {
                version,
                ..key.clone()
            }),
            (_, None) => return Err(nobody_makes(dataset, &self.submitted.workflow)),
        };
        if let Some(version) = &read {
            state.reads.push(self.read_of(version, dataset, used)?);
        }
        if used.role != Role::In {
            let makes = self.output_of(key, dataset, used)?;
            state.makes.push(Makes {
                from: read,
                ..makes
            });
        }
        Ok(())
    }

    fn read_of(
        &self,
        version: &VersionKey,
        dataset: &workflow::Dataset,
        used: &workflow::DatasetUse,
    ) -> Result<Reads, RequestError> {
        self.catalog.same_source(version, dataset)?;
        let known = self.catalog.version(version);
        if dataset.encrypt && known.is_some_and(|v| !v.is_sealed) {
            let text = format!(
                "`{}` has `encrypt`, but version {} of it is stored on the nodes unencrypted: remove that first (`tarn data rm`), and set `encrypt` in the first job that reads or makes it",
                dataset.name, version.version
            );
            return Err(RequestError::new(Code::Invalid, text));
        }
        let is_scattered = used.distribution == Distribution::Scatter;
        let known = || self.catalog.dataset(version)?.rule.clone();
        let rule = dataset.scatter.clone().or_else(known);
        let nodes = self.submitted.workflow.steps.first().map_or(1, |s| s.nodes);
        if is_scattered && rule.is_none() && nodes > 1 {
            return Err(no_rule(&dataset.name));
        }
        Ok(Reads {
            rule: rule.filter(|_| is_scattered),
            name: dataset.name.clone(),
            version: version.clone(),
            on_first: used.distribution == Distribution::Single,
            is_changed: used.role == Role::Inout,
            size: dataset.size.unwrap_or(0),
            tier: dataset.tier.clone(),
        })
    }

    /// The version that a job makes: its promised one, or the next.
    fn output_of(
        &self,
        key: VersionKey,
        dataset: &workflow::Dataset,
        used: &workflow::DatasetUse,
    ) -> Result<Makes, RequestError> {
        let (job, workflow) = (self.job, &self.submitted.workflow);
        let is_sealed = dataset.encrypt || self.catalog.was_sealed(&key);
        if is_sealed && dataset.size.is_none() {
            let text = format!(
                "`{}` is encrypted, so its output is written to memory: state its largest size, `data.{}.size = \"...\"`",
                dataset.name, dataset.name
            );
            return Err(RequestError::new(Code::Invalid, text));
        }
        let versions = self.catalog.dataset(&key).map(|d| &d.versions);
        let own = versions.and_then(|v| v.iter().find(|(_, v)| v.maker == Some(job)));
        let next = versions.and_then(|v| v.keys().next_back());
        let version = own.map_or(next.map_or(1, |last| last + 1), |(number, _)| *number);
        let rule = dataset.scatter.clone();
        if used.distribution == Distribution::Scatter && rule.is_none() {
            return Err(no_rule(&dataset.name));
        }
        let rescue = (dataset.on_failure == OnFailure::Drain)
            .then_some(workflow.external.as_ref())
            .flatten();
        Ok(Makes {
            version: VersionKey { version, ..key },
            rule: rule.filter(|_| used.distribution == Distribution::Scatter),
            from: None,
            size: dataset.size.unwrap_or(0),
            dest: dataset.dest.clone(),
            rescue: rescue.map(|to| to.join(format!("{}-{}-{job}", workflow.name, dataset.name))),
            copies: dataset.copies,
            tier: dataset.tier.clone().or_else(|| {
                let mut steps = workflow.steps.iter();
                steps.find_map(|step| step.tier.clone())
            }),
        })
    }

    /// Which dataset of the site a script means, as version 0 of it, if its user may.
    fn whose(
        &self,
        dataset: &workflow::Dataset,
        role: Role,
        state: &SiteJob,
    ) -> Result<VersionKey, RequestError> {
        let Some(of) = &dataset.of else {
            return Ok(VersionKey {
                owner: state.owner,
                workflow: state.workflow.clone(),
                dataset: dataset.name.clone(),
                version: 0,
            });
        };
        let owner = match &of.whose {
            Whose::Own => Some(state.owner),
            whose => self.submitted.owners.get(&whose.to_string()).copied(),
        };
        let owner = owner.ok_or_else(|| {
            let text = format!("`{of}`: there is no `{}` on this site", of.whose);
            RequestError::new(Code::Invalid, text)
        })?;
        let workflow = of.workflow.as_deref().unwrap_or(Owner::NO_WORKFLOW);
        let id = VersionKey {
            owner,
            workflow: workflow.to_owned(),
            dataset: of.dataset.clone(),
            version: 0,
        };
        if role != Role::In {
            let is_project = matches!(owner, Owner::Project(_));
            return match is_project && owner.is(state.user, &state.groups) {
                true => Ok(id),
                false => {
                    let text = format!(
                        "`{of}` is made and changed only by members of its project, and you are not a member"
                    );
                    Err(RequestError::new(Code::Denied, text))
                }
            };
        }
        match self.catalog.may_read(&id, state.user, &state.groups) {
            true => Ok(id),
            // A user who may not read it does not learn whether it is there.
            false => {
                let text = format!(
                    "`{of}` is not there, or not yours to read: who owns it can grant it (`tarn data grant`)"
                );
                Err(RequestError::new(Code::Denied, text))
            }
        }
    }

    /// The version that a job reads.
    fn latest(&self, id: &VersionKey, role: Role, state: &SiteJob) -> Option<u32> {
        // A job that is submitted again does not read its own output.
        let others = self.catalog.dataset(id)?.versions.iter().filter(|(_, v)| {
            v.maker != Some(self.job) && !matches!(v.state, VersionState::Failed(_))
        });
        let others: Vec<_> = others.collect();
        let is_own = (id.owner, &id.workflow) == (state.owner, &state.workflow);
        // Of another workflow's dataset, a version that is there: nobody waits for others' jobs, unless there is
        // nothing else.
        let near = others.iter().filter(|(_, v)| {
            let maker = v.maker.and_then(|maker| self.jobs.get(&maker));
            let is_ours =
                maker.is_some_and(|m| m.owner == state.owner && m.workflow == state.workflow);
            is_own || is_ours || role == Role::Inout || v.state == VersionState::There
        });
        let near = near.map(|(number, _)| **number).max();
        near.or_else(|| others.iter().map(|(number, _)| **number).max())
    }
}

/// The name of the workflow of a script that gives none.
fn alone(name: &str, job: SlurmJobId) -> String {
    let job = format!(".{job}");
    let end = name.len().min(MAX_NAME_BYTES - job.len());
    // It is a name, so all its characters are bytes.
    format!("{}{job}", &name[..end])
}

fn no_rule(name: &str) -> RequestError {
    let text = format!(
        "`{name}:scatter`: which entries are of which rank is not known: this script must give the rule too: `data.{name}.scatter = \"...\"`"
    );
    RequestError::new(Code::Invalid, text)
}

fn nobody_makes(dataset: &workflow::Dataset, workflow: &workflow::Workflow) -> RequestError {
    let name = &dataset.name;
    let text = match &dataset.of {
        None => format!(
            "nobody makes dataset `{name}`: it has no `source`, and no job of workflow `{}` has it in `out`; submit that job first",
            workflow.name
        ),
        Some(of) => format!("nobody has made `{of}` yet: submit the job that does first"),
    };
    RequestError::new(Code::NotFound, text)
}

/// Whether jobs may use a dataset in this way.
fn check_use(dataset: &workflow::Dataset, used: &workflow::DatasetUse) -> Result<(), RequestError> {
    check_name("dataset", &dataset.name)?;
    if let Some(entry) = &used.entry {
        let text = format!(
            "`{}/{entry}`: single entries cannot be asked for by jobs yet; ask for `{}`",
            dataset.name, dataset.name
        );
        return Err(RequestError::new(Code::Unsupported, text));
    }
    if used.distribution == Distribution::Shared {
        let (why, instead) = Distribution::NO_SHARED;
        let text = format!("`{}:shared`: {why}: {instead}", dataset.name);
        return Err(RequestError::new(Code::Unsupported, text));
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<(), RequestError> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!(
        "`{}` cannot be the name of a {what}: up to 64 letters, digits, `_`, `-`, `.`, not `.` first",
        name.escape_debug()
    );
    Err(RequestError::new(Code::Invalid, text))
}
