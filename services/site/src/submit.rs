//! A job comes: which versions it reads and makes, and whether there may be space for them.

use crate::model::catalog::{Version, VersionId, VersionState};
use crate::model::job::{JobState, Makes, Phase, Reads};
use crate::partitions::partitions_of;
use crate::state::Site;
use crate::{MAX_ADVISED, MAX_DATASETS, MAX_JOBS};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::local::{Code, Refusal};
use tarn_proto::site::{Advice, Job, Owner, Said, Submitted, is_name};
use tarn_types::bounds::MAX_NAME_BYTES;
use tarn_types::energy::{Draw, ranks_of};
use tarn_types::units::{Nanos, SECOND};
use tarn_types::workflow::{self, Distribution, Keep, OnFailure, Role};

/// How long a job waits for others that were submitted before it: Slurm tells of several at the same time, in any order.
const ORDER: Nanos = 2 * SECOND;
/// How long it waits for those of them that are known to exist.
const KNOWN_ORDER: Nanos = 10 * SECOND;
/// How long it waits for who makes what it reads.
const MAKER: Nanos = 30 * SECOND;

impl Site {
    /// A job was submitted.
    pub(crate) fn arrive(&mut self, job: Job, submitted: Submitted) {
        let now = self.now;
        let known = self.arriving.entry(job);
        known.or_insert((now, submitted));
    }

    /// Takes in, in the order of their submission, what has waited long enough.
    pub(crate) fn take_in(&mut self) {
        let now = self.now;
        let jobs: Vec<Job> = self.arriving.keys().copied().collect();
        let mut is_one_early = false;
        for job in jobs {
            let Some((since, submitted)) = self.arriving.get(&job).cloned() else {
                continue;
            };
            let waited = now.saturating_sub(since);
            let is_told =
                |other| self.jobs.contains_key(other) || self.arriving.contains_key(other);
            let is_first = !is_one_early && submitted.before.iter().all(is_told);
            if waited < ORDER || (waited < KNOWN_ORDER && !is_first) {
                is_one_early = true;
                continue;
            }
            let done = self.set_up(job, &submitted);
            if matches!(&done, Err(why) if why.code == Code::NotFound) && waited < MAKER {
                continue;
            }
            self.arriving.remove(&job);
            let said = match (done, self.jobs.get(&job)) {
                (Ok(()), Some(state)) => {
                    let advice = self.advice(state);
                    let expected = advice.prefer.clone();
                    let full = advice.exclude.as_ref().map(|e| e.full.clone());
                    if let Some(state) = self.jobs.get_mut(&job) {
                        state.ahead = expected;
                        state.full = full.unwrap_or_default();
                    }
                    Said::Advice(advice)
                }
                (Ok(()), None) => Said::Done,
                (Err(why), _) => Said::Refused(why),
            };
            if let Some(token) = self.waiting.remove(&job) {
                self.answer_to(token, said);
            }
        }
    }

    /// Register a job. Slurm asks again when slurmctld was started again, and when a job is put back into its queue.
    fn set_up(&mut self, job: Job, submitted: &Submitted) -> Result<(), Refusal> {
        if let Some(known) = self.jobs.get(&job)
            && known.user == submitted.user
            && known.phase != Phase::Ended
        {
            return Ok(());
        }
        if self.jobs.len() >= MAX_JOBS {
            self.forget_jobs();
        }
        if self.jobs.len() >= MAX_JOBS {
            let text = format!(
                "{MAX_JOBS} jobs with data are known already: try again when some have ended"
            );
            return Err(Refusal::new(Code::Busy, text));
        }
        let mut state = self.resolve(job, submitted)?;
        self.check_partitions(&state)?;
        self.check_quota(&state)?;
        self.check_size(&state)?;
        self.check_tiers(&state)?;
        self.claim(job, &state, submitted);
        if let Some(known) = self.jobs.remove(&job)
            && known.user == state.user
        {
            state.history = known.history;
        }
        state.note(self.now, "taken in");
        self.jobs.insert(job, state);
        Ok(())
    }

    /// Jobs that wait for what this one has made, and where they would best run now that it is there.
    pub(crate) fn advise_readers(&self, id: Job) -> Said {
        let made = self.jobs.get(&id).into_iter().flat_map(|j| &j.makes);
        let made: Vec<&VersionId> = made.map(|m| &m.version).collect();
        let waits = |job: &JobState| {
            let reads = job.reads.iter().any(|r| made.contains(&&r.version));
            job.phase == Phase::Waiting && (reads || job.beside == Some(id))
        };
        let readers = self.jobs.iter().filter(|(_, job)| waits(job));
        let advices = readers.map(|(id, job)| (*id, self.advice(job)));
        let told = advices.filter(|(_, a)| !a.prefer.is_empty() || !a.require.is_empty());
        let advices: Vec<(Job, Advice)> = told.take(MAX_ADVISED).collect();
        match advices.is_empty() {
            true => Said::Done,
            false => Said::Advices(advices),
        }
    }

    /// Where a job would best run, where it is not to, and after which jobs.
    pub(crate) fn advice(&self, job: &JobState) -> Advice {
        let excluded = self.excluded_of(job, &self.short_of(self.wants_of(job).0));
        let is_possible = |name: &str| {
            let mut without = excluded.full.iter().chain(&excluded.own);
            without.all(|node| node != name)
        };
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        let mut after = BTreeSet::new();
        for reads in &job.reads {
            let Some(version) = self.catalog.version(&reads.version) else {
                continue;
            };
            if let (VersionState::Promised, Some(maker)) = (&version.state, version.maker) {
                after.insert(maker);
                // It is likely to run where what it reads is made.
                let maker = self.jobs.get(&maker);
                for node in maker.iter().flat_map(|m| &m.nodes) {
                    *bytes.entry(node).or_default() += 1;
                }
            }
            for (part, proof) in &version.parts {
                let part = reads.version.part(*part);
                for (name, node) in self.nodes.iter().filter(|(_, n)| n.is_up) {
                    if node.has(&part) {
                        *bytes.entry(name).or_default() += proof.bytes.max(1);
                    }
                }
            }
        }
        bytes.retain(|name, _| is_possible(name));
        let wants = job.wants.max(1) as usize;
        let is_outside = bytes.is_empty() && !job.reads.is_empty();
        let names = match is_outside {
            // Who makes it has no nodes yet: it is advised again when it is made.
            true if !after.is_empty() => Vec::new(),
            // It will be brought from outside: all nodes are equal, but for what they draw, and for who has them.
            true => {
                let up = self.nodes.iter().filter(|(_, node)| node.is_up);
                let up = up.map(|(name, _)| &name[..]);
                self.equals(up.filter(|name| is_possible(name)).collect(), wants)
            }
            false => self.best(bytes.into_iter().collect(), wants),
        };
        let beside = job.beside.and_then(|other| self.jobs.get(&other));
        Advice {
            prefer: names,
            require: beside.map_or_else(Vec::new, |other| other.nodes.clone()),
            after: after.into_iter().collect(),
            exclude: job.is_anywhere().then_some(excluded),
        }
    }

    /// So many of nodes of which none has anything of a job: those that draw least; none where they do not differ, or that is not known. If
    /// what the job reads is brought ahead, so many all the same: those that fewest jobs have or are expected on.
    fn equals(&self, nodes: Vec<&str>, wanted: usize) -> Vec<String> {
        let nodes: Vec<(&str, u64)> = nodes.into_iter().map(|name| (name, 0)).collect();
        let ranks = ranks_of(&self.draws_of(&nodes));
        if ranks.windows(2).any(|two| two[0] != two[1]) {
            return self.best(nodes, wanted);
        }
        if !self.config.ahead {
            return Vec::new();
        }
        let live = self.jobs.values().filter(|job| job.phase != Phase::Ended);
        let mut jobs: BTreeMap<&str, usize> = BTreeMap::new();
        for name in live.flat_map(|job| job.nodes.iter().chain(&job.ahead)) {
            *jobs.entry(name).or_default() += 1;
        }
        let mut nodes: Vec<&str> = nodes.into_iter().map(|(name, _)| name).collect();
        nodes.sort_by_key(|name| (jobs.get(name).copied().unwrap_or(0), *name));
        nodes.truncate(wanted);
        nodes.into_iter().map(str::to_owned).collect()
    }

    fn draws_of(&self, nodes: &[(&str, u64)]) -> Vec<(Draw, u32)> {
        let draw = |(name, _): &(&str, u64)| self.draws.get(*name).copied().unwrap_or_default();
        nodes.iter().map(draw).collect()
    }

    /// So many of the nodes that have most bytes; of those that have as many, those that draw least (docs/admin/energy.md).
    fn best(&self, nodes: Vec<(&str, u64)>, wanted: usize) -> Vec<String> {
        let ranks = ranks_of(&self.draws_of(&nodes));
        let mut best: Vec<_> = nodes.into_iter().zip(ranks).collect();
        best.sort_by_key(|((name, bytes), rank)| (Reverse(*bytes), *rank, *name));
        let names = best.into_iter().map(|((name, _), _)| name.to_owned());
        names.take(wanted).collect()
    }

    /// Finds out which versions a job reads and makes. Changes nothing.
    fn resolve(&self, job: Job, submitted: &Submitted) -> Result<JobState, Refusal> {
        let workflow = &submitted.workflow;
        let [step] = &workflow.steps[..] else {
            let text = "a job's script is one step";
            return Err(Refusal::new(Code::Invalid, text));
        };
        let makes = step.uses.iter().any(|u| u.role != Role::In);
        if step.foreach.is_some() && makes {
            let text = "the tasks of a job array cannot make datasets yet, only read them: use separate jobs for `out` and `inout`";
            return Err(Refusal::new(Code::Unsupported, text));
        }
        let owner = Owner::User(submitted.user);
        check_name("workflow", &workflow.name)?;
        let prior = submitted.chain.as_ref().and_then(|chain| chain.prior);
        let name = match (prior, submitted.is_alone) {
            (Some(prior), _) => self.continued_workflow(prior, submitted)?,
            // Two runs of one script that names no workflow have nothing to do with each other.
            (None, true) => alone(&workflow.name, job),
            (None, false) => workflow.name.clone(),
        };
        let mut state = JobState {
            user: submitted.user,
            group: submitted.group,
            groups: submitted.groups.clone(),
            owner,
            workflow: name,
            beside: prior.filter(|_| submitted.chain.as_ref().is_some_and(|c| c.same_nodes)),
            phase: Phase::Waiting,
            is_leaving: false,
            excludes: submitted.excludes.clone(),
            full: Vec::new(),
            ahead: Vec::new(),
            is_bringing: false,
            tasks: step.tasks,
            wants: step.nodes,
            reads: Vec::new(),
            makes: Vec::new(),
            partitions: partitions_of(workflow)?,
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
        for used in &step.uses {
            let dataset = workflow
                .data
                .get(used.data.at())
                .ok_or_else(|| Refusal::new(Code::Invalid, "a use of no dataset"))?;
            self.resolve_use(job, submitted, dataset, used, &mut state)?;
        }
        Ok(state)
    }

    /// The workflow that a job continues, as another one of its user's began it.
    fn continued_workflow(&self, prior: Job, submitted: &Submitted) -> Result<String, Refusal> {
        let refuse = |code, text: String| Err(Refusal::new(code, text));
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

    /// A job that was submitted, and never taken in, is over.
    pub(crate) fn never_comes(&mut self, job: Job) {
        if self.catalog.stop_awaiting(job) {
            self.settle();
        }
    }

    /// Adds to a job what it has of one dataset: what it reads, what it makes, or both.
    fn resolve_use(
        &self,
        job: Job,
        submitted: &Submitted,
        dataset: &workflow::Dataset,
        used: &workflow::Use,
        state: &mut JobState,
    ) -> Result<(), Refusal> {
        check_use(dataset, used)?;
        let key = self.whose(submitted, dataset, used.role, state)?;
        let latest = self.latest(job, &key, used.role, state);
        let latest = latest.or(dataset.source.as_ref().map(|_| 0));
        let read = match (used.role, latest) {
            (Role::Out, _) => None,
            (_, Some(version)) => Some(VersionId {
                version,
                ..key.clone()
            }),
            (_, None) => return Err(nobody_makes(dataset, &submitted.workflow)),
        };
        if let Some(version) = &read {
            state.reads.push(self.read_of(version, dataset, used)?);
        }
        if used.role != Role::In {
            let makes = self.output_of((job, &submitted.workflow), key, dataset, used)?;
            state.makes.push(Makes {
                from: read,
                ..makes
            });
        }
        Ok(())
    }

    fn read_of(
        &self,
        version: &VersionId,
        dataset: &workflow::Dataset,
        used: &workflow::Use,
    ) -> Result<Reads, Refusal> {
        self.catalog.same_source(version, dataset)?;
        let known = self.catalog.version(version);
        if dataset.encrypt && known.is_some_and(|v| !v.is_sealed) {
            let text = format!(
                "`{}` has `encrypt`, but version {} of it is stored on the nodes unencrypted: remove that first (`tarn data rm`), and set `encrypt` in the first job that reads or makes it",
                dataset.name, version.version
            );
            return Err(Refusal::new(Code::Invalid, text));
        }
        Ok(Reads {
            name: dataset.name.clone(),
            version: version.clone(),
            on_first: used.distribution == Distribution::Single,
            is_changed: used.role == Role::Inout,
            size: dataset.size.unwrap_or(0),
            tier: dataset.tier.clone(),
        })
    }

    /// The version that a job makes: the one that it has promised before, or the next.
    fn output_of(
        &self,
        (job, workflow): (Job, &workflow::Workflow),
        key: VersionId,
        dataset: &workflow::Dataset,
        used: &workflow::Use,
    ) -> Result<Makes, Refusal> {
        let is_sealed = dataset.encrypt || self.catalog.was_sealed(&key);
        if is_sealed && dataset.size.is_none() {
            let text = format!(
                "`{}` is encrypted, so its output is written to memory: state its largest size, `data.{}.size = \"...\"`",
                dataset.name, dataset.name
            );
            return Err(Refusal::new(Code::Invalid, text));
        }
        let versions = self.catalog.dataset(&key).map(|d| &d.versions);
        let own = versions.and_then(|v| v.iter().find(|(_, v)| v.maker == Some(job)));
        let next = versions.and_then(|v| v.keys().next_back());
        let version = own.map_or(next.map_or(1, |last| last + 1), |(number, _)| *number);
        let rule = dataset.scatter.clone();
        if used.distribution == Distribution::Scatter && rule.is_none() {
            let text = format!(
                "`{}:scatter`: this script must give its rule too: `data.{}.scatter = \"...\"`",
                dataset.name, dataset.name
            );
            return Err(Refusal::new(Code::Invalid, text));
        }
        let rescue = (dataset.on_failure == OnFailure::Drain)
            .then_some(workflow.external.as_ref())
            .flatten();
        Ok(Makes {
            version: VersionId { version, ..key },
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

    /// What it will make exists from now on, as a promise.
    fn claim(&mut self, job: Job, state: &JobState, submitted: &Submitted) {
        let keep_of = |name: &str| {
            let mut data = submitted.workflow.data.iter();
            let found = data.find(|d| d.name == name);
            (
                found.map_or(Keep::UntilConsumed, |d| d.keep),
                found.and_then(|d| d.source.clone()),
                found.is_some_and(|d| d.encrypt),
            )
        };
        let now = self.now;
        for makes in &state.makes {
            // What an earlier start of the job has left of it is of no use.
            self.drop_version(&makes.version);
        }
        let key = (state.owner, state.workflow.clone());
        let own = self.catalog.workflows.entry(key.clone()).or_default();
        match &submitted.chain {
            None => own.has_ended = submitted.is_alone,
            Some(chain) => {
                own.awaits.extend(&chain.others);
                let was_awaited = own.awaits.remove(&job) || !chain.others.is_empty();
                let is_last = own.awaits.is_empty() && (was_awaited || chain.is_end);
                own.has_ended |= is_last;
            }
        }
        let reads = state.reads.iter();
        let reads = reads.map(|r| (&r.name, &r.version, None::<Job>));
        let makes = state.makes.iter();
        let makes = makes.map(|m| (&m.version.dataset, &m.version, Some(job)));
        for (name, id, maker) in reads.chain(makes) {
            let (keep, source, encrypt) = keep_of(name);
            let is_sealed = encrypt || self.catalog.was_sealed(id);
            let whose = (id.owner, id.workflow.clone());
            let workflow = self.catalog.workflows.entry(whose).or_default();
            let dataset = workflow.datasets.entry(id.dataset.clone()).or_default();
            let version = dataset.versions.entry(id.version);
            let version = version.or_insert_with(|| Version {
                state: match maker {
                    Some(_) => VersionState::Promised,
                    None => VersionState::There,
                },
                maker,
                // What a job has made of it is not there again.
                source: source.filter(|_| maker.is_none()),
                content: 0,
                is_sealed,
                parts: BTreeMap::new(),
                keep,
                used: now,
                is_warned: false,
            });
            version.used = now;
        }
        // A script by itself may have to do with others' data alone.
        let is_empty = self
            .catalog
            .workflows
            .get(&key)
            .is_some_and(|w| w.datasets.is_empty());
        if is_empty && submitted.chain.is_none() {
            self.catalog.workflows.remove(&key);
        }
    }

    pub(crate) fn check_quota(&self, state: &JobState) -> Result<(), Refusal> {
        let makes = state.makes.iter().map(|m| m.version.owner);
        let owners: BTreeSet<Owner> = makes.chain([state.owner]).collect();
        owners
            .into_iter()
            .try_for_each(|owner| self.check_quota_of(owner, state))
    }

    fn check_quota_of(&self, owner: Owner, state: &JobState) -> Result<(), Refusal> {
        let has = match owner {
            Owner::User(_) => "you have".to_owned(),
            Owner::Project(gid) => format!("your project, group {gid}, has"),
        };
        if self.catalog.count_datasets(owner) >= MAX_DATASETS {
            let text = format!("{has} {MAX_DATASETS} datasets: remove some (`tarn data rm`)");
            return Err(Refusal::new(Code::Quota, text));
        }
        let makes = state.makes.iter().filter(|m| m.version.owner == owner);
        let makes: u64 = makes.map(|m| m.size).sum();
        let partitions = match owner {
            Owner::User(uid) if uid == state.user => state.partition_bytes(),
            _ => 0,
        };
        let partitions = partitions.saturating_mul(u64::from(state.wants.max(1)));
        self.check_space_of(owner, makes.saturating_add(partitions))
    }

    /// Whether an owner may have so many bytes more.
    fn check_space_of(&self, owner: Owner, wants: u64) -> Result<(), Refusal> {
        let quota = self.quota_of(owner);
        let held = self.held_by(owner);
        if quota == 0 || held.saturating_add(wants) <= quota {
            return Ok(());
        }
        let has = match owner {
            Owner::User(_) => "you have".to_owned(),
            Owner::Project(gid) => format!("your project, group {gid}, has"),
        };
        let text = format!(
            "{has} {held} bytes on the nodes, and this job would write {wants} more: the quota is {quota}; remove some (`tarn data rm`)"
        );
        Err(Refusal::new(Code::Quota, text))
    }

    pub(crate) fn quota_of(&self, owner: Owner) -> u64 {
        let usual = match owner {
            Owner::User(_) => self.config.quota,
            Owner::Project(_) => self.config.project_quota,
        };
        self.config.quotas.get(&owner).copied().unwrap_or(usual)
    }
}

/// What the workflow of a script that says no name is called.
fn alone(name: &str, job: Job) -> String {
    let job = format!(".{job}");
    let end = name.len().min(MAX_NAME_BYTES - job.len());
    // It is a name, so all its characters are bytes.
    format!("{}{job}", &name[..end])
}

fn nobody_makes(dataset: &workflow::Dataset, workflow: &workflow::Workflow) -> Refusal {
    let name = &dataset.name;
    let text = match &dataset.of {
        None => format!(
            "nobody makes dataset `{name}`: it has no `source`, and no job of workflow `{}` has it in `out`; submit that job first",
            workflow.name
        ),
        Some(of) => format!("nobody has made `{of}` yet: submit the job that does first"),
    };
    Refusal::new(Code::NotFound, text)
}

/// Whether jobs may use a dataset in this way.
fn check_use(dataset: &workflow::Dataset, used: &workflow::Use) -> Result<(), Refusal> {
    check_name("dataset", &dataset.name)?;
    if let Some(entry) = &used.entry {
        let text = format!(
            "`{}/{entry}`: single entries cannot be asked for by jobs yet; ask for `{}`",
            dataset.name, dataset.name
        );
        return Err(Refusal::new(Code::Unsupported, text));
    }
    if used.distribution == Distribution::Shared {
        let text = format!(
            "`{}` cannot be one folder of all nodes (`shared`) between jobs yet, only within a run (`tarn run`)",
            dataset.name
        );
        return Err(Refusal::new(Code::Unsupported, text));
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!(
        "`{}` cannot be the name of a {what}: up to 64 letters, digits, `_`, `-`, `.`, not `.` first",
        name.escape_debug()
    );
    Err(Refusal::new(Code::Invalid, text))
}
