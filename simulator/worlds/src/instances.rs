//! Instances in the simulated world: they run, end, commit and are reused.

use crate::model::{ScheduledEvent, SimulatedAttempt, broken, failure, part_ref};
use crate::simulation::Simulation;
use std::collections::BTreeMap;
use tarn_ports::WorldError;
use tarn_types::account::add;
use tarn_types::action::AttemptSpec;
use tarn_types::event::{AttemptOutcome, Event, Output, RunErrorKind, Undeclared, Usage};
use tarn_types::hash::Hasher;
use tarn_types::id::{InstanceId, TierRef};
use tarn_types::part::{PartClass, PartInfo, Place, StoreKey};
use tarn_types::units::Nanos;
use tarn_types::workflow::{DatasetUse, Distribution, KeepPartition, Step, VersionPartitioning};

impl Simulation {
    pub(crate) fn run(&mut self, run: &AttemptSpec) -> Result<(), WorldError> {
        let id = run.instance;
        if self.running.contains_key(&id) {
            return broken(format!("{id} is started while it runs"));
        }
        if self.cannot_run(run) {
            self.happen(Event::Ended {
                instance: id,
                attempt: run.attempt,
                ended: failed(RunErrorKind::NodeLost, "a node of it is lost"),
                usage: Usage::default(),
            });
            return Ok(());
        }
        for held in run.views.iter().flatten().flatten() {
            if !self.store.holds(held.part, &Place::Node(held.tier_ref)) {
                return broken(format!(
                    "{id} reads {} at {:?}, where it is not",
                    held.part, held.tier_ref
                ));
            }
            if self
                .store
                .info(held.part)
                .is_some_and(|i| i.key != held.key)
            {
                return broken(format!(
                    "{id} reads {} under a wrong key, {}",
                    held.part, held.key.0
                ));
            }
        }
        self.check_capacity(run)?;
        if !self.make_partitions(run) {
            // It was ordered before the tier was known to have shrunk.
            self.happen(Event::Ended {
                instance: id,
                attempt: run.attempt,
                ended: failed(
                    RunErrorKind::Cancelled,
                    "others have taken the space for its partition; tarn looks for a node again",
                ),
                usage: Usage::default(),
            });
            return Ok(());
        }
        let whole = (self.estimates.run_time)(id);
        let step = self.workflow.steps.get(id.step.at());
        let hangs = self.faults.hangs(self.now, id, run.attempt);
        let limit = step.and_then(|s| s.time).filter(|_| hangs);
        let fails = self.faults.attempt(self.now, id, run.attempt);
        let (run_time, fails) = match (limit, fails) {
            (Some(limit), _) => (limit, Some(RunErrorKind::TimedOut)),
            (None, Some(share)) => ((whole as f64 * share) as Nanos, Some(RunErrorKind::Exit)),
            (None, None) => (whole, None),
        };
        self.schedule(
            self.now.saturating_add(run_time),
            ScheduledEvent::End(id, run.attempt),
        );
        let running = SimulatedAttempt {
            run: run.clone(),
            lost: false,
            since: self.now,
            run_time,
            fails,
        };
        self.running.insert(id, running);
        Ok(())
    }

    /// Makes its partitions in the space that was reserved for them. Whether that is still there.
    fn make_partitions(&mut self, run: &AttemptSpec) -> bool {
        let mut made: Vec<(&StoreKey, TierRef)> = Vec::new();
        for exported in &run.partitions {
            let about = self.workflow.partition(exported.partition);
            let takes = about.takes(exported.tier_refs.len());
            for tier_ref in &exported.tier_refs {
                let was_there = self.store.has_partition(&exported.key, *tier_ref);
                if !self.store.make_partition(&exported.key, *tier_ref, takes) {
                    made.iter()
                        .for_each(|(key, tier_ref)| self.store.take_back(key, *tier_ref));
                    return false;
                }
                if !was_there {
                    made.push((&exported.key, *tier_ref));
                }
            }
        }
        true
    }

    /// Removes the partitions that an attempt had for itself.
    fn take_back(&mut self, run: &AttemptSpec) {
        for exported in &run.partitions {
            if self.workflow.partition(exported.partition).keep == KeepPartition::Step {
                let tier_refs = exported.tier_refs.iter();
                tier_refs.for_each(|s| self.store.take_back(&exported.key, *s));
            }
        }
    }

    /// Cores, memory and GPUs of nodes, and the cores of hosts, are never overcommitted.
    fn check_capacity(&self, run: &AttemptSpec) -> Result<(), WorldError> {
        let mut nodes: BTreeMap<usize, (u64, u64, u64)> = BTreeMap::new();
        let all = self.running.values().map(|r| &r.run).chain([run]);
        for (step, tier_ref) in all.flat_map(|r| {
            let step = self.workflow.steps.get(r.instance.step.at());
            step.into_iter()
                .flat_map(|s| r.nodes.iter().map(move |tier_ref| (s, tier_ref)))
        }) {
            let used = nodes.entry(tier_ref.node.at()).or_default();
            used.0 += u64::from(step.cores);
            add(&mut used.1, step.memory, "memory of a node");
            used.2 += u64::from(step.gpus);
        }
        let mut hosts: BTreeMap<u32, u64> = BTreeMap::new();
        for (at, (cores, memory, gpus)) in nodes {
            let Some(node) = self.cluster.nodes.get(at) else {
                return broken(format!(
                    "{} runs on a node {at} that does not exist",
                    run.instance
                ));
            };
            if cores > u64::from(node.cores) || memory > node.memory || gpus > u64::from(node.gpus)
            {
                let what = format!("{cores} cores, {memory} bytes of memory, {gpus} GPUs");
                return broken(format!(
                    "{} makes {} give {what}, more than it has",
                    run.instance, node.name
                ));
            }
            *hosts.entry(node.host).or_default() += cores;
        }
        for (host, cores) in hosts {
            let has = self
                .cluster
                .hosts
                .get(host as usize)
                .map_or(0, |h| u64::from(h.cores));
            if cores > has {
                return broken(format!(
                    "{} makes host {host} give {cores} cores of {has}",
                    run.instance
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn ended(&mut self, id: InstanceId, attempt: u32) {
        if self
            .running
            .get(&id)
            .is_none_or(|r| r.run.attempt != attempt)
        {
            return;
        }
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        self.take_back(&running.run);
        let ended = match running.fails {
            _ if running.lost => failed(RunErrorKind::NodeLost, "a node of it was lost"),
            Some(kind) => failed(kind, "as the fault plan wants it"),
            None => self.commit(&running.run),
        };
        let wall = running.run_time.min(self.now - running.since);
        let usage = Usage {
            wall,
            user: wall,
            ..self.volumes(&running.run, &ended)
        };
        self.happen(Event::Ended {
            instance: id,
            attempt,
            ended,
            usage,
        });
    }

    fn volumes(&self, run: &AttemptSpec, ended: &AttemptOutcome) -> Usage {
        let views = run.views.iter().flatten().flatten();
        let written = match ended {
            AttemptOutcome::Committed { outputs, .. } => outputs
                .iter()
                .flat_map(|o| &o.parts)
                .map(|(i, _)| i.bytes)
                .sum(),
            AttemptOutcome::Failed { .. } => 0,
        };
        Usage {
            read: views
                .filter_map(|h| self.store.info(h.part))
                .map(|i| i.bytes)
                .sum(),
            written,
            ..Usage::default()
        }
    }

    /// Puts the outputs where the step's distribution wants them; whole or not at all.
    fn commit(&mut self, run: &AttemptSpec) -> AttemptOutcome {
        let Some(step) = self.workflow.steps.get(run.instance.step.at()) else {
            return failed(RunErrorKind::Launch, "the workflow has no such step");
        };
        let mut seq = 0;
        let mut outputs = Vec::new();
        for used in &step.uses {
            let Some(version) = used.makes else { continue };
            let parts = self.output_parts(step, used, version, run, &mut seq);
            outputs.push(Output {
                data: used.data,
                version,
                parts,
            });
        }
        let wanted = outputs.iter().flat_map(|o| &o.parts);
        let wanted: Vec<(TierRef, u64)> = wanted
            .flat_map(|(info, tier_refs)| tier_refs.iter().map(|s| (*s, info.stored)))
            .collect();
        for (at, (tier_ref, bytes)) in wanted.iter().enumerate() {
            if !self.store.reserve(*tier_ref, *bytes) {
                wanted[..at]
                    .iter()
                    .for_each(|(tier_ref, bytes)| self.store.release(*tier_ref, *bytes));
                let what = format!(
                    "{bytes} bytes do not fit on {} of {}",
                    tier_ref.tier, tier_ref.node
                );
                return failed(RunErrorKind::NoSpace, what);
            }
        }
        for output in &outputs {
            for (info, tier_refs) in &output.parts {
                let part = part_ref(output.data, output.version, run.instance.index, info.seq);
                self.store.replace(part, info.clone());
                tier_refs
                    .iter()
                    .for_each(|s| self.store.publish(part, Place::Node(*s)));
            }
        }
        let undeclared = Undeclared::default();
        AttemptOutcome::Committed {
            outputs,
            undeclared,
        }
    }

    /// `seq` counts over all outputs of one commit, as store keys do.
    fn output_parts(
        &self,
        step: &Step,
        used: &DatasetUse,
        version: u32,
        run: &AttemptSpec,
        seq: &mut u32,
    ) -> Vec<(PartInfo, Vec<TierRef>)> {
        if let Some(parts) = self.as_before(step, used, run, seq) {
            return parts;
        }
        let dataset = self.workflow.data.get(used.data.at());
        let mut sums: BTreeMap<PartClass, (u64, u64)> = BTreeMap::new();
        for entry in (self.estimates.output)(run.instance, used.data) {
            let class = match dataset.map_or(VersionPartitioning::Whole, |d| d.partition) {
                VersionPartitioning::Whole => PartClass::Whole,
                VersionPartitioning::Entries => {
                    let first = entry.path.split('/').next();
                    PartClass::Entry(first.unwrap_or_default().to_owned())
                }
                VersionPartitioning::Ranks => dataset
                    .and_then(|d| d.scatter.as_ref())
                    .and_then(|rule| rule.rank(entry.path.as_bytes()))
                    .map_or(PartClass::Common, PartClass::Rank),
            };
            let sum = sums.entry(class).or_default();
            *sum = (sum.0 + entry.bytes, sum.1 + entry.files);
        }
        let mut parts = Vec::with_capacity(sums.len());
        for (class, (bytes, files)) in sums {
            let tier_refs = tier_refs_of(step, used.distribution, &class, &run.nodes);
            let mut h = Hasher::new();
            h.field(&run.identity.0.to_le_bytes())
                .number(u64::from(used.data.0));
            h.number(u64::from(version))
                .number(u64::from(*seq))
                .number(bytes);
            let info = PartInfo {
                seq: *seq,
                class,
                bytes,
                stored: self.estimates.stored(bytes, files),
                files,
                hash: Some(h.finish()),
                key: StoreKey(format!("{}.{seq}", run.store)),
            };
            *seq += 1;
            parts.push((info, tier_refs));
        }
        parts
    }

    /// The outputs that an instance took from an earlier run: after a loss it makes them again.
    fn as_before(
        &self,
        step: &Step,
        used: &DatasetUse,
        run: &AttemptSpec,
        seq: &mut u32,
    ) -> Option<Vec<(PartInfo, Vec<TierRef>)>> {
        let prior = self.prior.get(*self.reused.get(&run.instance)? as usize)?;
        let mut made = step.uses.iter().filter(|u| u.makes.is_some());
        let output = prior.outputs.get(made.position(|u| u == used)?)?;
        let again = |(info, _): &(PartInfo, Vec<TierRef>)| {
            let key = StoreKey(format!("{}.{seq}", run.store));
            *seq += 1;
            let tier_refs = tier_refs_of(step, used.distribution, &info.class, &run.nodes);
            let info = PartInfo {
                key,
                ..info.clone()
            };
            (info, tier_refs)
        };
        Some(output.parts.iter().map(again).collect())
    }

    pub(crate) fn stop(&mut self, id: InstanceId, attempt: u32) {
        if self
            .running
            .get(&id)
            .is_none_or(|r| r.run.attempt != attempt)
        {
            return;
        }
        if let Some(running) = self.running.remove(&id) {
            self.take_back(&running.run);
            let usage = Usage {
                wall: self.now - running.since,
                ..Usage::default()
            };
            self.happen(Event::Ended {
                instance: id,
                attempt,
                ended: failed(RunErrorKind::Cancelled, "it was stopped"),
                usage,
            });
        }
    }

    pub(crate) fn reuse(&mut self, id: InstanceId, at: u32) -> Result<(), WorldError> {
        let step = self.workflow.steps.get(id.step.at());
        let (Some(prior), Some(step)) = (self.prior.get(at as usize).cloned(), step) else {
            return broken(format!("{id} reuses a prior {at} that does not exist"));
        };
        let made: Vec<_> = step
            .uses
            .iter()
            .filter_map(|u| Some((u.data, u.makes?)))
            .collect();
        self.reused.insert(id, at);
        let mut parts = BTreeMap::new();
        for (o, (output, (data, version))) in prior.outputs.iter().zip(made).enumerate() {
            for (p, (info, _)) in output.parts.iter().enumerate() {
                let part = part_ref(data, version, id.index, info.seq);
                self.store.know(part, info.clone());
                parts.insert((o as u32, p as u32), (part, info.clone()));
            }
        }
        for (o, p, place) in &prior.held {
            if matches!(place, Place::Node(tier_ref) if self.lost.contains_key(&tier_ref.node)) {
                continue;
            }
            if let Some((part, info)) = parts.get(&(*o, *p))
                && !self.put(*part, info.clone(), place.clone())
            {
                return broken(format!(
                    "{id} reuses {part}, which its tier has no space for"
                ));
            }
        }
        Ok(())
    }
}

fn failed(kind: RunErrorKind, message: impl Into<String>) -> AttemptOutcome {
    AttemptOutcome::Failed {
        failure: failure(kind, message),
        log_tail: String::new(),
        newest: None,
    }
}

/// The nodes of the step that hold a part of an output.
fn tier_refs_of(
    step: &Step,
    distribution: Distribution,
    class: &PartClass,
    nodes: &[TierRef],
) -> Vec<TierRef> {
    match (distribution, class) {
        // Which files go where is the file system's: on the first node they take no less space.
        (Distribution::Single | Distribution::Shared, _) => nodes.iter().take(1).copied().collect(),
        (Distribution::Scatter, PartClass::Rank(rank)) => {
            let at = step.node_of_rank(*rank) as usize;
            nodes.get(at).copied().into_iter().collect()
        }
        _ => nodes.to_vec(),
    }
}
