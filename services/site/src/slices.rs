//! Scattered inputs: each of a job's nodes gets the entries of its ranks, and those of no rank, in a folder of the job's. Parts go to
//! no node for that.

use crate::model::catalog::stored_size;
use crate::model::job::{NodeJobTask, Reads, SiteJob};
use crate::model::node::SiteNode;
use crate::model::orders::OrderPurpose;
use crate::model::progress::PreparationState;
use crate::model::space::{SpaceAvailability, SpaceRequest};
use crate::state::Site;
use tarn_proto::local::{Code, RequestError};
use tarn_proto::site::{Origin, Part, Proof, Slice, SlurmJobId, Uid, Work};

/// The sources of a node's folder of some ranks.
pub(crate) struct SliceOrder {
    pub(crate) parts: Vec<(Part, Option<Origin>, Option<Proof>)>,
    pub(crate) slice: Slice,
    /// The node that gives most of it.
    pub(crate) peer: Option<(String, Uid)>,
    /// Bytes that it takes at most.
    bytes: u64,
}

/// The name of the promise of space for a folder of some ranks; no dataset has such a name.
pub(crate) fn slice_key(name: &str) -> String {
    format!("{name}/ranks")
}

impl Site {
    /// Whether a job's nodes get the entries of their ranks alone. An encrypted input is opened whole.
    pub(crate) fn is_sliced(&self, job: &SiteJob, reads: &Reads) -> bool {
        reads.rule.is_some() && job.nodes.len() > 1 && !self.catalog.is_sealed(&reads.version)
    }

    /// Sees to it that each node has the entries of its ranks. Those that the job changes are copied when its outputs are
    /// prepared.
    pub(crate) fn bring_slices(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        reads: &Reads,
    ) -> PreparationState {
        if let Err(why) = job.check_grant(&self.catalog, reads) {
            return PreparationState::Failed(why);
        }
        let version = match self.made_version(reads) {
            Ok(version) => version,
            Err(progress) => return progress,
        };
        if let Some(source) = &version.source
            && !version.parts.is_empty()
            && !self.is_unchanged(id, job, reads, source)
        {
            return PreparationState::Pending;
        }
        if reads.is_changed {
            return PreparationState::Complete;
        }
        let step = NodeJobTask::Slice(reads.name.clone());
        let mut is_whole = true;
        for at in 0..job.nodes.len() {
            if job.is_done(&job.nodes[at], &step) {
                continue;
            }
            is_whole = false;
            if !self.orders.is_under_way(id, &job.nodes[at], &step)
                && let Err(why) = self.order_slice(id, job, reads, at)
            {
                return PreparationState::Failed(why);
            }
        }
        match is_whole {
            true => PreparationState::Complete,
            false => PreparationState::Pending,
        }
    }

    /// Orders the folder that the node at this position reads, once its sources and its space are there.
    fn order_slice(
        &mut self,
        id: SlurmJobId,
        job: &SiteJob,
        reads: &Reads,
        at: usize,
    ) -> Result<(), RequestError> {
        let node = &job.nodes[at];
        let Some(wanted) = self.slice_order(job, reads, at)? else {
            return Ok(());
        };
        let whom = SpaceRequest {
            job: id,
            tier: reads.tier.as_deref(),
            size: wanted.bytes,
            is_ahead: false,
        };
        let key = slice_key(&reads.name);
        let store = match self.reserve_space(node, (reads.version.owner, &key), whom) {
            SpaceAvailability::In(store) => store,
            SpaceAvailability::Soon => return Ok(()),
            SpaceAvailability::None(why) => return Err(why),
        };
        let work = Work::Slice {
            job: id,
            dataset: reads.name.clone(),
            parts: wanted.parts,
            slice: wanted.slice,
            written: false,
            store,
        };
        let why = OrderPurpose::Job(id, NodeJobTask::Slice(reads.name.clone()), wanted.peer);
        let rights = (Self::rights(reads.version.owner, job.user), job.group);
        self.work(node, why, rights, work);
        Ok(())
    }

    /// The parts of an input that the node at this position needs; `None` as long as something of it is on its way, or the
    /// nodes that have it are busy.
    pub(crate) fn slice_order(
        &mut self,
        job: &SiteJob,
        reads: &Reads,
        at: usize,
    ) -> Result<Option<SliceOrder>, RequestError> {
        let version = self.catalog.version(&reads.version).cloned();
        let (Some(version), Some(rule)) = (version, &reads.rule) else {
            return Ok(None);
        };
        let slice = job.ranks_at(rule, at, true);
        let mut wanted = SliceOrder {
            parts: Vec::new(),
            slice,
            peer: None,
            bytes: 0,
        };
        let is_held = |part: &Part| self.nodes.values().any(|n| n.is_up && n.has(part));
        let mut parts = version.parts.keys();
        if let Some(source) = &version.source
            && !parts.any(|part| is_held(&reads.version.part(*part)))
        {
            let part = reads.version.part(version.content);
            wanted.bytes = reads.size;
            wanted.parts = vec![(part, Some(Origin::Outside(source.clone())), None)];
            return Ok(Some(wanted));
        }
        let user = Self::rights(reads.version.owner, job.user);
        let mut most = 0;
        for (number, proof) in &version.parts {
            let is_other = |ranks: &Slice| !wanted.slice.may_overlap(ranks);
            if version.ranks.get(number).is_some_and(is_other) {
                continue;
            }
            if proof.file.is_some() {
                let text = format!(
                    "`{0}:scatter`: `{0}` is a single file, which has no entries of ranks: use `broadcast`",
                    reads.name
                );
                return Err(RequestError::new(Code::Invalid, text));
            }
            let part = reads.version.part(*number);
            let bytes = stored_size(proof);
            let known = self.nodes.get(&job.nodes[at]);
            if known.is_some_and(|n| n.moving.contains_key(&part)) {
                return Ok(None);
            }
            if let Some(known) = known.filter(|n| n.has(&part)) {
                // In the only store its files are linked.
                wanted.bytes += if known.levels.len() > 1 { bytes } else { 0 };
                wanted.parts.push((part, None, Some(proof.clone())));
                continue;
            }
            let Some(peer) = self.giver_of(&part)? else {
                return Ok(None);
            };
            let Some(address) = self.peer_at(peer.clone(), (user, job.group)) else {
                return Ok(None);
            };
            if wanted.peer.is_none() || bytes > most {
                most = bytes;
                wanted.peer = Some((peer, user));
            }
            wanted.bytes = wanted.bytes.saturating_add(bytes);
            let from = Some(Origin::Peer(address));
            wanted.parts.push((part, from, Some(proof.clone())));
        }
        Ok(Some(wanted))
    }

    /// The least busy node that has a part; `None` as long as it is moving there.
    fn giver_of(&self, part: &Part) -> Result<Option<String>, RequestError> {
        let have = |n: &SiteNode| n.is_up && n.has_still(part);
        let sources = self.nodes.iter().filter(|(_, n)| have(n));
        let best = sources.min_by_key(|(name, _)| self.orders.count_from(name));
        match best {
            Some((name, _)) => Ok(Some(name.clone())),
            None if self.is_moving(part) => Ok(None),
            None => Err(RequestError::new(
                Code::Lost,
                format!(
                    "{part} is on no node that answers; make it again, or wait until the nodes that have it are back: {}",
                    self.last_seen(part)
                ),
            )),
        }
    }

    /// A node's folder of its ranks is there: what it takes is known now.
    pub(crate) fn slice_made(&mut self, node: &str, id: SlurmJobId, name: &str, proof: &Proof) {
        let reads = self.jobs.get(&id).map(|job| &job.reads);
        let reads = reads.and_then(|reads| reads.iter().find(|r| r.name == name));
        let owner = reads.map(|r| r.version.owner);
        if let (Some(owner), Some(node)) = (owner, self.nodes.get_mut(node)) {
            let key = (id, slice_key(name));
            node.settle_promise(key, owner, stored_size(proof));
        }
    }
}
