//! The end of a job's data: it is published, goes where it belongs, and is copied.

use crate::model::catalog::{VersionKey, VersionState, stored_size};
use crate::model::job::{Makes, NodeJobTask, SiteJob};
use crate::model::node::SiteNode;
use crate::model::orders::OrderPurpose;
use crate::model::progress::PreparationState;
use crate::model::space::SpaceRequest;
use crate::state::Site;
use std::collections::BTreeMap;
use std::path::Path;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Proof, SlurmJobId, Work, WorkerAddress};

impl Site {
    /// Publishes the files that its nodes have written as parts. Of a job that has failed: only those that are to be
    /// rescued.
    pub(crate) fn publish(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        let mut is_whole = true;
        for makes in &job.makes {
            let is_wanted = job.is_well || makes.rescue.is_some();
            for (at, node) in job.writers(makes).iter().enumerate() {
                if !is_wanted {
                    continue;
                }
                let step = NodeJobTask::Publish(makes.version.dataset.clone());
                if !job.is_done(node, &step) {
                    match self.wait_for(id, node) {
                        Ok(()) => {}
                        // The files there are lost with the node: their readers are notified.
                        Err(PreparationState::Failed(why)) => {
                            self.catalog
                                .fail_version(&makes.version, &why.text, self.now);
                            continue;
                        }
                        Err(look) => return look,
                    }
                }
                let work = Work::Publish {
                    store: self.written_in(id, node, &makes.version.dataset),
                    job: id,
                    part: makes.version.part(at as u32),
                    slice: job.slice(makes, at),
                    sealed: self.catalog.is_sealed(&makes.version),
                };
                is_whole &= self.once(id, job, node, step, job.order(work));
            }
        }
        if is_whole {
            self.published(id, job);
            PreparationState::Complete
        } else {
            PreparationState::Pending
        }
    }

    fn published(&mut self, id: SlurmJobId, job: &SiteJob) {
        let now = self.now;
        for makes in &job.makes {
            if let Some(version) = self.catalog.version_mut(&makes.version)
                && version.state == VersionState::Promised
            {
                version.used = now;
                version.state = match job.is_well {
                    true => VersionState::There,
                    false => VersionState::Failed(format!("job {id} failed")),
                };
            }
        }
    }

    /// Data with a `dest` is copied there, and copies are made.
    pub(crate) fn send(&mut self, id: SlurmJobId, job: &SiteJob) -> PreparationState {
        let mut is_whole = true;
        for makes in &job.makes {
            let to = match job.is_well {
                true => &makes.dest,
                false => &makes.rescue,
            };
            if let Some(to) = to {
                match self.send_to(id, job, &makes.version, to) {
                    PreparationState::Complete => {}
                    PreparationState::Pending => is_whole = false,
                    never => return never,
                }
            }
            if job.is_well && makes.copies > 1 {
                is_whole &= self.copy(id, job, makes);
            }
        }
        if is_whole {
            PreparationState::Complete
        } else {
            PreparationState::Pending
        }
    }

    fn send_to(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        version: &VersionKey,
        to: &Path,
    ) -> PreparationState {
        let known = self.catalog.version(version).map(|v| v.parts.clone());
        let known = known.unwrap_or_default();
        let step = NodeJobTask::Send(version.dataset.clone());
        if job.done.iter().any(|(_, done)| *done == step) {
            return PreparationState::Complete;
        }
        if let Err(look) = self.wait_for_parts(id, version, known.keys()) {
            return look;
        }
        let user = Self::rights(version.owner, job.user);
        let Some(node) = self.node_with_most(version, &known) else {
            return PreparationState::Failed(RequestError::new(Code::Lost, "no node answers"));
        };
        if self.orders.is_under_way_anywhere(id, &step) {
            return PreparationState::Pending;
        }
        let mut parts = Vec::new();
        for (number, proof) in &known {
            let part = version.part(*number);
            if self.nodes[&node].has(&part) {
                parts.push((part, None, proof.clone()));
                continue;
            }
            let found = self.stock().up().find(|(_, n)| n.has(&part));
            let Some((peer, there)) = found else {
                let text = format!(
                    "{part} is on no node that answers: {}",
                    self.last_seen(&part)
                );
                return PreparationState::Failed(RequestError::new(Code::Lost, text));
            };
            let peer = peer.clone();
            let Some(port) = there.ports.get(&user).copied() else {
                self.request_port(&peer, (user, job.group));
                return PreparationState::Pending;
            };
            let at = WorkerAddress {
                node: peer.clone(),
                host: peer,
                port,
            };
            parts.push((part, Some(at), proof.clone()));
        }
        let work = Work::Send {
            parts,
            dest: to.to_owned(),
            owner: puts_as(id, version),
        };
        self.work(
            &node,
            OrderPurpose::Job(id, step, None),
            (user, job.group),
            work,
        );
        PreparationState::Pending
    }

    /// Of the nodes that answer, the one with most of a version: it takes the rest from the others.
    fn node_with_most(&self, version: &VersionKey, parts: &BTreeMap<u32, Proof>) -> Option<String> {
        let bytes = |node: &SiteNode| -> u64 {
            let parts = parts.iter();
            let parts = parts.filter(|(part, _)| node.has(&version.part(**part)));
            parts.map(|(_, proof)| proof.bytes.max(1)).sum()
        };
        let most = self.stock().up().max_by_key(|(_, n)| bytes(n));
        most.map(|(name, _)| name.clone())
    }

    /// Has a node check whether a job's outputs may go where they belong. Returns whether that is known.
    pub(crate) fn check_dests(&mut self, id: SlurmJobId, job: &SiteJob) -> bool {
        let Some(node) = job.nodes.first() else {
            return true;
        };
        let mut is_whole = true;
        for makes in &job.makes {
            let Some(dest) = makes.dest.clone() else {
                continue;
            };
            let work = Work::CheckDest {
                dest,
                owner: puts_as(id, &makes.version),
            };
            let step = NodeJobTask::CheckDest(makes.version.dataset.clone());
            is_whole &= self.once(id, job, node, step, job.order(work));
        }
        is_whole
    }

    /// Of each of these parts the node that has it and was there last is waited for, if none answers: its tarnd may be about to begin
    /// again.
    fn wait_for_parts<'a>(
        &mut self,
        id: SlurmJobId,
        version: &VersionKey,
        parts: impl Iterator<Item = &'a u32>,
    ) -> Result<(), PreparationState> {
        for part in parts.map(|number| version.part(*number)) {
            let have = || {
                self.nodes
                    .iter()
                    .filter(|(_, n)| n.parts.contains_key(&part))
            };
            let is_had = have().any(|(_, n)| n.is_up);
            let away = have().max_by_key(|(_, n)| n.since);
            let away = away.map(|(name, _)| name.clone());
            if let (false, Some(away)) = (is_had, away) {
                self.wait_for(id, &away)?;
            }
        }
        Ok(())
    }

    /// Sees to replicas on as many nodes as a dataset asks for, as far as there are nodes with space.
    fn copy(&mut self, id: SlurmJobId, job: &SiteJob, makes: &Makes) -> bool {
        let version = self
            .catalog
            .version(&makes.version)
            .map(|v| v.parts.clone());
        let mut is_whole = true;
        for (number, proof) in version.unwrap_or_default() {
            let part = makes.version.part(number);
            let have = self
                .nodes
                .values()
                .filter(|n| n.has(&part) || !n.is_up && n.parts.contains_key(&part))
                .count();
            if have >= makes.copies as usize {
                continue;
            }
            // It must fit into one store.
            let free = |name: &str, n: &SiteNode| {
                let free = n.present().map(|l| self.stock().free_in(name, n, l));
                free.max().unwrap_or(0)
            };
            let failed = |name: &str| {
                job.tries
                    .contains_key(&(name.to_owned(), NodeJobTask::Fetch(part.clone())))
            };
            let others = self.stock().up().filter(|(name, n)| {
                !n.has(&part) && free(name, n) >= stored_size(&proof) && !failed(name)
            });
            let Some(node) = others
                .max_by_key(|(name, n)| free(name, n))
                .map(|(name, _)| name.clone())
            else {
                continue;
            };
            if self.orders.is_fetched_anywhere(&part) {
                is_whole = false;
                continue;
            }
            let about = (&part, Some(&proof), None);
            match self.bring_part(SpaceRequest::of_output(id, makes), job, &node, about) {
                PreparationState::Pending => is_whole = false,
                // A copy that cannot be made is no reason to hold the job.
                PreparationState::Complete | PreparationState::Failed(_) => {}
            }
        }
        is_whole
    }
}

/// The name under which a job's output is put outside. A script that names no workflow has one of its own number: its
/// next job may replace this one's output.
fn puts_as(id: SlurmJobId, version: &VersionKey) -> String {
    let number = format!(".{id}");
    let workflow = version.workflow.strip_suffix(&number);
    let workflow = workflow.unwrap_or(&version.workflow);
    format!("site {} {workflow} {}", version.owner, version.dataset)
}
