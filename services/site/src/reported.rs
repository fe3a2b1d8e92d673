//! The results of orders.

use crate::model::catalog::{VersionKey, stored_size};
use crate::model::job::{NodeJobTask, SiteJobPhase};
use crate::model::orders::OrderPurpose;
use crate::state::Site;
use crate::verify::has_read;
use std::collections::BTreeSet;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Part, Proof, Report, SlurmJobId, Uid, WorkResult};

impl Site {
    pub(crate) fn reported(&mut self, id: u64, report: Report) {
        match report {
            Report::Alive => {}
            Report::Capacity { capacity, .. } => {
                let Some(ordered) = self.orders.remove(&id) else {
                    return;
                };
                if let Some(node) = self.nodes.get_mut(&ordered.node) {
                    node.capacity = Some(capacity);
                }
            }
            Report::Serving { port, .. } => {
                let Some(ordered) = self.orders.remove(&id) else {
                    return;
                };
                if let OrderPurpose::Port(user) = ordered.why
                    && let Some(node) = self.nodes.get_mut(&ordered.node)
                {
                    node.ports.insert(user, port);
                }
                self.advance_waiting();
            }
            Report::Worked { what, .. } => match what {
                WorkResult::Failed(why) => self.unreported(id, &why),
                WorkResult::Done | WorkResult::Inventory { .. } => self.worked(id, None),
                WorkResult::Serving { port } => {
                    let ordered = self.orders.get(&id);
                    if let Some((job, node)) = ordered.and_then(|o| match o.why {
                        OrderPurpose::Job(job, NodeJobTask::Export, _) => {
                            Some((job, o.node.clone()))
                        }
                        _ => None,
                    }) {
                        self.note_export(job, &node, port);
                    }
                    self.worked(id, None);
                }
                WorkResult::Proven { proof, moved } => self.worked(id, Some((proof, moved))),
            },
        }
    }

    fn worked(&mut self, id: u64, proven: Option<(Proof, u64)>) {
        let Some(ordered) = self.orders.remove(&id) else {
            return;
        };
        let node = ordered.node;
        match ordered.why {
            OrderPurpose::Job(job, step, from) => {
                if let Some((_, moved)) = &proven {
                    self.record_move(job, &step, from.is_some(), (*moved, ordered.since));
                }
                self.step_done((&node, &ordered.store), job, step, from, proven);
            }
            OrderPurpose::Reclaim(user, held) => {
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.doomed.remove(&(user, held));
                }
                self.advance_waiting();
            }
            OrderPurpose::Check(part, proof) => {
                // Meanwhile nobody may need it any more.
                let known = self.catalog.version(&VersionKey::of(&part));
                let is_known = known.is_some_and(|v| v.parts.get(&part.part) == Some(&proof));
                // An older node reports that it is whole, without its hash.
                let is_same = proven.is_none_or(|(found, _)| found == proof);
                match is_known {
                    true if is_same => {
                        self.place((&node, &ordered.store), &part, stored_size(&proof));
                        self.advance_waiting();
                    }
                    // It has changed since the node reported it.
                    true => self.doom_copy((&node, &ordered.store), &part),
                    false => {}
                }
            }
            OrderPurpose::Verify(at, part, known) => {
                let found = Ok(proven.map(|(found, _)| found));
                self.verified((&node, &ordered.store), (at, &part, &known), found);
            }
            OrderPurpose::Move(part) => self.moved(&node, &part),
            OrderPurpose::Port(_) | OrderPurpose::Forget(_) => {}
        }
    }

    fn step_done(
        &mut self,
        (node, store): (&str, &str),
        id: SlurmJobId,
        step: NodeJobTask,
        from: Option<(String, Uid)>,
        proven: Option<(Proof, u64)>,
    ) {
        match (&step, proven) {
            (NodeJobTask::Fetch(part), Some((proof, moved))) => {
                let is_near = from.is_some();
                self.count_moved(id, |counts| match is_near {
                    true => counts.between_nodes += moved,
                    false => counts.read_outside += moved,
                });
                self.fetched((node, store), part, proof);
                self.note_unused(id, node, part);
                if from.is_none()
                    && let Some(job) = self.jobs.get_mut(&id)
                {
                    // A node that has read a source need not look at it.
                    let look = VersionKey::of(part).look();
                    job.done.insert((node.to_owned(), look));
                }
                // Others may wait for it too, to read it from here.
                self.advance_waiting();
                self.advance(id);
                return;
            }
            (NodeJobTask::Slice(_) | NodeJobTask::Prepare(_), Some((proof, moved))) => {
                let is_near = from.is_some();
                self.count_moved(id, |counts| match is_near {
                    true => counts.between_nodes += moved,
                    false => counts.read_outside += moved,
                });
                if let NodeJobTask::Slice(name) = &step {
                    self.slice_made(node, id, name, &proof);
                }
            }
            (NodeJobTask::Publish(dataset), Some((proof, _))) => {
                self.part_made(node, id, dataset, proof)
            }
            (NodeJobTask::Send(_), Some((_, moved))) => {
                self.count_moved(id, |counts| counts.written_outside += moved);
            }
            _ => {}
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.done.insert((node.to_owned(), step));
        }
        self.advance(id);
    }

    fn fetched(&mut self, place: (&str, &str), part: &Part, proof: Proof) {
        let Some(version) = self.catalog.version_mut(&VersionKey::of(part)) else {
            self.doom_copy(place, part);
            return;
        };
        match version.parts.get(&part.part) {
            None => {
                version.parts.insert(part.part, proof.clone());
            }
            Some(known) if *known == proof => {}
            // It differs from the others: nobody is to read it.
            Some(_) => {
                self.doom_copy(place, part);
                return;
            }
        }
        self.place(place, part, stored_size(&proof));
    }

    fn part_made(&mut self, node: &str, id: SlurmJobId, dataset: &str, proof: Proof) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let Some(at) = job.nodes.iter().position(|n| n == node) else {
            return;
        };
        let Some(makes) = job.makes.iter().find(|m| m.version.dataset == dataset) else {
            return;
        };
        let version = makes.version.clone();
        let slice = job.slice(makes, at);
        let part = version.part(at as u32);
        let there = self.nodes.get_mut(node);
        let store = there.map(|there| there.end_promise(id, makes));
        let store = store.unwrap_or_default();
        if let Some(version) = self.catalog.version_mut(&version) {
            version.parts.insert(part.part, proof.clone());
            version.ranks.extend(slice.map(|slice| (part.part, slice)));
            self.place((node, &store), &part, stored_size(&proof));
        }
    }

    /// An order has failed, or gets no report.
    pub(crate) fn unreported(&mut self, id: u64, why: &RequestError) {
        let Some(ordered) = self.orders.remove(&id) else {
            return;
        };
        let node = ordered.node;
        let (id, step, from) = match ordered.why {
            OrderPurpose::Job(job, step, from) => (job, step, from),
            // Content that could not be removed stays on the list; the node's next session tries again.
            OrderPurpose::Reclaim(..) => {
                // A copy that comes again waits for it.
                if self.rules >= 2 {
                    self.advance_waiting();
                }
                return;
            }
            OrderPurpose::Port(_) | OrderPurpose::Forget(_) => return,
            // An unchecked copy stays: the node's next session checks again.
            OrderPurpose::Check(part, _) => {
                // In a store that is away nothing is found, and nothing is lost.
                let known = self.nodes.get(&node);
                let is_away = known.is_none_or(|node| node.is_away(&ordered.store));
                if has_read(why.code) && !is_away {
                    self.doom_copy((&node, &ordered.store), &part);
                }
                return;
            }
            OrderPurpose::Verify(at, part, known) => {
                self.verified((&node, &ordered.store), (at, &part, &known), Err(why));
                return;
            }
            OrderPurpose::Move(part) => {
                let is_gone = why.code == Code::NotFound;
                self.not_moved(&node, &part, is_gone, &why.text);
                return;
            }
        };
        if let Some((peer, user)) = from
            && let Some(peer) = self.nodes.get_mut(&peer)
        {
            // Its worker may have ended since.
            peer.ports.remove(&user);
        }
        let may_be_peer = matches!(why.code, Code::Io | Code::Lost);
        if self.rules >= 1 && step.has_peers() && may_be_peer {
            self.forget_ports(id);
        }
        let is_early = self.rules >= 2 && self.waits_without_nodes(id);
        if is_early && matches!(step, NodeJobTask::Fetch(_)) {
            self.not_brought(id, &node, &step, why);
            return;
        }
        if let (NodeJobTask::Look(..), Code::Changed) = (&step, why.code) {
            match self.source_changed(id, &step) {
                Ok(()) => self.advance(id),
                Err(why) => self.stage_failed(id, why),
            }
            return;
        }
        let is_lost = why.code == Code::Lost && !self.is_up(&node);
        let is_final = is_final(why.code);
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let is_copy = job.phase == SiteJobPhase::Sending && matches!(step, NodeJobTask::Fetch(_));
        let has_failed = !is_lost && job.has_failed(&node, &step);
        let is_lending = matches!(step, NodeJobTask::Export | NodeJobTask::Attach(_));
        if is_lending && job.phase == SiteJobPhase::Running && (has_failed || is_final) {
            // No stage of it fails; its tasks get an error when they open a piece that is not exported there any more.
            job.note(now, format!("{node}: {}", why.text));
            return;
        }
        if !is_copy && (has_failed || is_final && !is_lost) {
            let text = format!("{node}: {}", why.text);
            self.failed_step(id, &step, RequestError::new(why.code, text));
            return;
        }
        self.advance(id);
    }

    /// Workers end when they are idle, and begin again at other ports: an order that read from several of them may have failed
    /// by any.
    fn forget_ports(&mut self, id: SlurmJobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let reads = job.reads.iter().map(|r| r.version.owner);
        let owners = reads.chain(job.makes.iter().map(|m| m.version.owner));
        let mut users: BTreeSet<u32> = owners.map(|o| Self::rights(o, job.user)).collect();
        users.insert(job.user);
        for node in self.nodes.values_mut() {
            node.ports.retain(|user, _| !users.contains(user));
        }
    }

    fn failed_step(&mut self, id: SlurmJobId, step: &NodeJobTask, why: RequestError) {
        if let NodeJobTask::Publish(dataset) = step {
            // Its readers are notified; others of the job's datasets are not concerned.
            let job = self.jobs.get(&id);
            let made = job.and_then(|j| {
                let mut makes = j.makes.iter();
                makes.find(|m| m.version.dataset == *dataset)
            });
            if let Some(version) = made.map(|m| m.version.clone()) {
                self.catalog.fail_version(&version, &why.text, self.now);
            }
        }
        self.stage_failed(id, why);
    }
}

/// Whether the same order would fail again.
pub(crate) fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::Denied | Code::NotFound | Code::Exists | Code::Invalid | Code::NoSpace
    )
}
