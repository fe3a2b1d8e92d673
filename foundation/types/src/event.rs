//! Events: the inputs of the engine, and half of every record of the event log.

use crate::account;
use crate::checkpoint::CheckpointId;
use crate::cluster::Cluster;
use crate::energy::Energy;
use crate::hash::Hash;
use crate::id::{DataId, InstanceId, NodeId, TierId, TierRef, TransferId};
use crate::part::{PartInfo, PartRef, Place, StoreKey};
use crate::policy::Policy;
use crate::units::Nanos;
use crate::workflow::{Keep, Workflow};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Something that happened in the world.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The run begins. Always the first record; everything the engine knows at the start is in it.
    Started(Box<Start>),
    /// An external dataset was listed. Version 0 has these parts. Hashes are known where the files have not
    /// changed since an earlier run read them.
    SourceListed {
        /// The dataset.
        data: DataId,
        /// Its parts.
        parts: Vec<PartInfo>,
    },
    /// An external dataset could not be listed.
    SourceFailed {
        /// The dataset.
        data: DataId,
        /// Why.
        failure: RunError,
    },
    /// A transfer is complete and published.
    TransferDone {
        /// The transfer.
        id: TransferId,
        /// Bytes of content moved over the link.
        bytes: u64,
        /// The content hash of each part, in the order of the transfer's parts.
        hashes: Vec<Hash>,
        /// Space each part takes at its destination, in the same order.
        stored: Vec<u64>,
        /// How long it was really moving (queueing in the world excluded).
        took: Nanos,
    },
    /// A transfer failed whole: nothing of it is visible, its sources are untouched.
    TransferFailed {
        /// The transfer.
        id: TransferId,
        /// Why.
        failure: RunError,
        /// The part whose replica, where it was read, has other content than when it was made, if one was found.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        damaged: Option<PartRef>,
    },
    /// A step's process has ended, and if it succeeded, its outputs are committed.
    Ended {
        /// The instance.
        instance: InstanceId,
        /// The attempt, from 1.
        attempt: u32,
        /// The outcome.
        ended: AttemptOutcome,
        /// The resources that it used.
        usage: Usage,
    },
    /// Something about the images of a step's processes. Of a step with copies of them on other nodes it is decided by this where it
    /// continues; of others nothing is.
    Image {
        /// The instance.
        instance: InstanceId,
        /// The attempt, from 1.
        attempt: u32,
        /// The event.
        what: Imaged,
    },
    /// An eviction was carried out.
    Evicted {
        /// The part.
        part: PartRef,
        /// From where.
        at: Place,
    },
    /// This run may use more or less of a tier (another run took or returned space).
    Capacity {
        /// The tier.
        #[serde(rename = "spot")]
        tier_ref: TierRef,
        /// Bytes that this run may use in all.
        bytes: u64,
    },
    /// Somebody wants the run to stop: SIGINT, SIGTERM, SIGHUP, `tarn cancel`.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// The run continues after an interruption: nothing that was running still runs.
    Resumed {
        /// The replicas that were found, whole, where the log has them. All others are lost. Of what belongs to
        /// other workflows the same, but older logs do not have it: all of it is there where nothing of a part is named.
        found: Vec<(PartRef, Place)>,
        /// The datasets that the user has pinned now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pinned: Vec<DataId>,
        /// As in [`Start::set_aside`], now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set_aside: Option<Vec<(TierRef, u64)>>,
    },
    /// A node is lost: its data cannot be read, nothing can be done there. Each step or transfer on it still gets its end
    /// (`Ended`, `TransferFailed`, of kind [`RunErrorKind::NodeLost`]), after this, as soon as its rest on other nodes has been
    /// stopped; so does everything that is ordered there before this is known.
    NodeLost {
        /// The node.
        node: NodeId,
        /// The sign of the loss.
        why: String,
    },
    /// A lost node can be used again. All that was under way with it has got its end before.
    NodeBack {
        /// The node.
        node: NodeId,
        /// Bytes that this run may use of each of its tiers now.
        capacities: Vec<u64>,
        /// The replicas of this run that are there whole, those among them that nobody wants any more: the engine
        /// takes them, or has them removed.
        whole: Vec<IntactReplica>,
    },
    /// The moment that the engine set has come.
    Timer,
}

/// A replica that a node has brought back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntactReplica {
    /// The part.
    pub part: PartRef,
    /// The key under which it is stored, which identifies the commit of the part.
    pub key: StoreKey,
    /// The tier that it is stored on.
    pub tier: TierId,
    /// Bytes that it takes there.
    pub stored: u64,
}

/// The engine's knowledge at the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The run's name.
    pub run: String,
    /// The workspace: names the folders of this workflow on tiers and external store.
    pub workspace: String,
    /// Wall-clock seconds since 1970 at the run's start.
    pub wall: u64,
    /// The workflow.
    pub workflow: Workflow,
    /// The cluster.
    pub cluster: Cluster,
    /// The options.
    pub options: Options,
    /// The instances that earlier runs left: those whose identity is unchanged need not run again.
    pub prior: Vec<PriorInstance>,
    /// Destinations that still hold the data of an earlier run.
    pub prior_dest: Vec<PriorDest>,
    /// Datasets of other workflows that this run reads where they are stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prior_data: Vec<PriorData>,
    /// The job whose nodes these are; none where all nodes are this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// Nothing goes from node to node that is not sealed: it stays so when the run is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// Datasets that the user has pinned (`tarn data pin`): their `keep` in `workflow` is `forever`. Each with its `keep` in
    /// the workflow file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<(DataId, Keep)>,
    /// Bytes of tiers that kept data takes of which this run does not know: the capacities in `cluster` are without them. Older logs do
    /// not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<Vec<(TierRef, u64)>>,
}

impl Start {
    /// The run continues, with the pinned datasets and the set-aside bytes of the event.
    pub fn resume(&mut self, pinned: &[DataId], set_aside: Option<&[(TierRef, u64)]>) {
        self.pin(pinned);
        if let Some(now) = set_aside {
            self.set_aside(now);
        }
    }

    /// From now on kept data takes so much of the tiers.
    pub fn set_aside(&mut self, now: &[(TierRef, u64)]) {
        set_aside(&mut self.cluster, &mut self.set_aside, now);
    }

    /// From now on the user has pinned just these datasets: they stay when the run is over.
    pub fn pin(&mut self, pinned: &[DataId]) {
        pin(&mut self.workflow, &mut self.pinned, pinned);
    }

    /// Whether the user has pinned a dataset.
    pub fn is_pinned(&self, data: DataId) -> bool {
        self.pinned.iter().any(|(pinned, _)| *pinned == data)
    }
}

/// Sets the `keep` of the datasets that the user has pinned, and that of those that were pinned before back to the one in the
/// workflow file.
pub fn pin(workflow: &mut Workflow, before: &mut Vec<(DataId, Keep)>, pinned: &[DataId]) {
    for (data, keep) in std::mem::take(before) {
        if let Some(dataset) = workflow.data.get_mut(data.at()) {
            dataset.keep = keep;
        }
    }
    for data in pinned {
        if let Some(dataset) = workflow.data.get_mut(data.at()) {
            let keep = std::mem::replace(&mut dataset.keep, Keep::Forever);
            before.push((*data, keep));
        }
    }
}

/// Takes the bytes that are set aside now from the capacities of tiers, after they have got back those of before.
pub fn set_aside(
    cluster: &mut Cluster,
    before: &mut Option<Vec<(TierRef, u64)>>,
    now: &[(TierRef, u64)],
) {
    let mut change = |tier_ref: &TierRef, change: &mut dyn FnMut(&mut u64)| {
        let node = cluster.nodes.get_mut(tier_ref.node.at());
        if let Some(tier) = node.and_then(|n| n.tiers.get_mut(tier_ref.tier.at())) {
            change(&mut tier.capacity);
        }
    };
    for (tier_ref, bytes) in before.take().unwrap_or_default() {
        change(&tier_ref, &mut |capacity| {
            account::add(capacity, bytes, "the capacity of a tier")
        });
    }
    let mut taken = Vec::with_capacity(now.len());
    for (tier_ref, bytes) in now {
        change(tier_ref, &mut |capacity| {
            let bytes = (*bytes).min(*capacity);
            *capacity -= bytes;
            taken.push((*tier_ref, bytes));
        });
    }
    *before = Some(taken);
}

/// How a run is to behave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The policy, recorded as its text.
    pub policy: Policy,
    /// The least verification of a transfer.
    pub verify: Verify,
    /// How much of a tier may be taken by data that no step of the run reads any more, in percent. 0: it goes at once.
    #[serde(default, skip_serializing_if = "is_none_of_it")]
    pub cache: u8,
    /// Nothing new is started once something has failed for good. Otherwise all continues that does not need it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fail_fast: bool,
}

fn is_none_of_it(percent: &u8) -> bool {
    *percent == 0
}

pub use crate::part::Verify;

/// An instance that an earlier run has committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorInstance {
    /// Its identity.
    pub identity: Hash,
    /// Its outputs, in the order of the step's uses.
    pub outputs: Vec<Output>,
    /// Those of their parts that are still held, with their places; positions (output, part).
    pub held: Vec<(u32, u32, Place)>,
}

/// A destination that an earlier run has filled and that has not changed since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorDest {
    /// The dataset.
    pub data: DataId,
    /// The content hash of the version it holds: see [`version_hash`].
    pub hash: Hash,
}

/// A dataset of another workflow, in the version that the run reads: it is never changed, moved or removed. The other workflow is
/// locked as long as the run is active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorData {
    /// The dataset of this workflow that stands for it.
    pub data: DataId,
    /// The workflow that it belongs to.
    pub workflow: String,
    /// The folder of that workflow on the tiers.
    pub workspace: String,
    /// Its name there.
    pub dataset: String,
    /// Its parts, under keys of this run.
    pub parts: Vec<PriorPart>,
    /// Bytes that its workflow takes of tiers; the capacities of the run's cluster are without them. Each tier once, whatever
    /// else is read of that workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<(TierRef, u64)>,
}

/// A part of a [`PriorData`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorPart {
    /// The part. Its hash is known.
    pub info: PartInfo,
    /// The places of its replicas: by the tier of this run's cluster, the folder.
    pub at: Vec<(TierRef, PathBuf)>,
}

impl PriorData {
    /// Its parts, as the run names them.
    pub fn parts(&self) -> impl Iterator<Item = (PartRef, &PriorPart)> {
        self.parts.iter().map(|part| {
            let name = PartRef {
                data: self.data,
                version: 0,
                origin: 0,
                seq: part.info.seq,
            };
            (name, part)
        })
    }
}

/// The replicas that belong to other workflows, and whether each is among what was `found` at a resumption. Nothing of a part of which
/// nothing was.
pub fn of_others(
    prior: &[PriorData],
    found: &[(PartRef, Place)],
) -> BTreeMap<(PartRef, Place), bool> {
    let parts = prior.iter().flat_map(PriorData::parts);
    let places = parts.flat_map(|(name, part)| {
        let place = move |(tier_ref, _): &_| ((name, Place::Node(*tier_ref)), false);
        part.at.iter().map(place)
    });
    let mut all: BTreeMap<_, _> = places.collect();
    let mut seen = BTreeSet::new();
    for at in found {
        if let Some(is_found) = all.get_mut(at) {
            *is_found = true;
            seen.insert(at.0);
        }
    }
    all.retain(|(name, _), _| seen.contains(name));
    all
}

/// The content hash of a version (or of some of its parts): of the parts' classes and hashes, in any
/// order.
pub fn version_hash<'a>(
    parts: impl IntoIterator<Item = (&'a crate::part::PartClass, Hash)>,
) -> Hash {
    let mut h = crate::hash::Hasher::new();
    let sorted: BTreeSet<_> = parts.into_iter().collect();
    for (class, hash) in sorted {
        match class {
            crate::part::PartClass::Whole => h.field(b"w"),
            crate::part::PartClass::Entry(name) => h.field(b"e").field(name.as_bytes()),
            crate::part::PartClass::Rank(r) => h.field(b"r").number(u64::from(*r)),
            crate::part::PartClass::Common => h.field(b"c"),
        };
        h.field(&hash.0.to_le_bytes());
    }
    h.finish()
}

/// The end of a step's attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum AttemptOutcome {
    /// Success; the outputs are on its nodes, renamed into place, with their manifests written.
    Committed {
        /// One for each `out` and `inout`, in the order of the step's uses.
        outputs: Vec<Output>,
        /// Files that it left undeclared; they have been removed.
        undeclared: Undeclared,
    },
    /// Failure; nothing of it is visible, its inputs are intact.
    Failed {
        /// Why.
        failure: RunError,
        /// Last lines of its log.
        log_tail: String,
        /// Of a step that continues from its checkpoints: the newest that its nodes can restore.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        newest: Option<CheckpointId>,
    },
}

/// An event of an image of a step's processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Imaged {
    /// It was taken, and is stored on the tier whole.
    Taken {
        /// The image.
        id: CheckpointId,
        /// Bytes that it takes there.
        bytes: u64,
        /// How long the processes stood still for it.
        stopped: Nanos,
        /// How long it took until it was whole.
        took: Nanos,
    },
    /// None could be taken; the step continues.
    NotTaken {
        /// Why.
        why: String,
    },
    /// The processes that this attempt began with are those of an image.
    Restored {
        /// The image.
        id: CheckpointId,
    },
    /// One could not be used, and was removed: the step continues from the one before, or begins again.
    NotRestored {
        /// The image.
        id: CheckpointId,
        /// Why.
        why: String,
    },
    /// A copy of it is stored on another node, whole.
    Copied {
        /// The image.
        id: CheckpointId,
        /// The tier of the copy.
        at: TierRef,
        /// How long it took.
        took: Nanos,
    },
    /// It could not be copied to another node; the next one is tried again.
    NotCopied {
        /// The image.
        id: CheckpointId,
        /// The tier for the copy.
        at: TierRef,
        /// Why.
        why: String,
    },
}

/// One output of a committed instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The dataset.
    pub data: DataId,
    /// The version.
    pub version: u32,
    /// Its parts. A part that several nodes of the step hold alike is listed once, with all of them.
    pub parts: Vec<(PartInfo, Vec<TierRef>)>,
}

/// Files that a step left in its working folder without declaring them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Undeclared {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first few names.
    pub names: Vec<String>,
}

/// The resources that an attempt used, over all its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// From start to end of its command.
    pub wall: Nanos,
    /// CPU time in user mode.
    pub user: Nanos,
    /// CPU time in the kernel.
    pub system: Nanos,
    /// Bytes read by system calls.
    pub read: u64,
    /// Bytes written by system calls.
    pub written: u64,
    /// Largest resident set of one process, bytes.
    pub memory: u64,
    /// Preparing views and pre-images before the command.
    pub prepare: Nanos,
    /// Hashing and committing after it.
    pub commit: Nanos,
    /// The energy that its nodes drew for it, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Energy>,
}

/// Why something failed: a stable kind for programs, a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunError {
    /// The kind.
    pub kind: RunErrorKind,
    /// The failure, its reason, and what to do.
    pub message: String,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunErrorKind {
    /// The command ended with a non-zero status.
    Exit,
    /// A signal ended it.
    Signal,
    /// It ran longer than its `time`.
    TimedOut,
    /// A promised output is missing or empty.
    NoOutput,
    /// It changed an input that it only reads.
    InputChanged,
    /// Two files of one name differ where trees are gathered.
    Conflict,
    /// The tier or the disk is full.
    NoSpace,
    /// The source changed or vanished while it was read.
    SourceChanged,
    /// Stored bytes do not match their hash.
    Corrupt,
    /// A name or link leads out of the dataset's root.
    Escape,
    /// It was stopped because the run ends.
    Cancelled,
    /// The operating system refused something else.
    Io,
    /// The step could not be started.
    Launch,
    /// A node that it ran on, or moved from or to, is lost. It does not count as a try; of a step, only the first does not.
    NodeLost,
}
