//! Why the engine did something. Every answer of `tarn why` is one of these, as logged.

use crate::action::Subject;
use crate::checkpoint::CheckpointId;
use crate::id::{DataId, InstanceId, NodeId, PartitionId, StepId, TierRef, TransferId};
use crate::text::some_of;
use crate::units::{Bytes, Elapsed, Nanos};
use crate::workflow::Workflow;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A reason, as data: printed by [`Reason::explain_with`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Reason {
    /// A source is needed by the workflow.
    Needed,
    /// Placement: the node where it can end first.
    EarliestEnd {
        /// The node.
        node: NodeId,
        /// When its cores are free, from now.
        free_in: Nanos,
        /// When its data is there, from now.
        data_in: Nanos,
        /// Bytes it must get from elsewhere.
        missing: u64,
        /// Bytes that lie there already, or are on their way there.
        local: u64,
        /// The next best node and how much later it would have ended.
        next: Option<(NodeId, Nanos)>,
        /// The next best is equal in all but this: the node draws less for each core, or is cooler.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        thriftier: bool,
    },
    /// Placement in the order of the queue, whatever fits: a node that is free.
    FirstFree {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Placement of the first in the queue: a node that is free.
    FirstInQueue {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Placement before others that go first: it does not delay them.
    Backfill {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Placement by `same-nodes`: where most of its input was made.
    SameNodes {
        /// The node, the first of several.
        node: NodeId,
    },
    /// Inputs are there and cores are free.
    Ready,
    /// Another attempt after a failure.
    Retry {
        /// The attempt that begins, not counting those that were cancelled.
        attempt: u32,
        /// Attempts allowed in all.
        of: u32,
    },
    /// Another attempt of a step that goes on from its checkpoints.
    Restart {
        /// The newest that its nodes could restore when the attempt before had failed, as far as that is known.
        from: Option<CheckpointId>,
        /// Which restart it is, from 1.
        restart: u32,
        /// Attempts that failed without a newer checkpoint.
        failures: u32,
        /// So many of these are allowed.
        retries: u32,
    },
    /// Placement: there it has its checkpoints.
    CheckpointsThere {
        /// The node, the first of several.
        node: NodeId,
    },
    /// The step goes on there from it if this node is lost.
    Buddy {
        /// The node that has the image.
        node: NodeId,
    },
    /// No other node has as much free as the images of its processes take.
    NoBuddy {
        /// Bytes.
        bytes: u64,
    },
    /// Placement: there lies a partition of its that is kept for the workflow.
    PartitionThere {
        /// The first of its nodes.
        node: NodeId,
        /// The partition.
        partition: PartitionId,
    },
    /// All steps that use it have committed.
    Used,
    /// It has committed: nothing goes on from its checkpoints.
    Committed,
    /// It runs on another tier of their node: nothing goes on from its checkpoints here.
    OtherTier,
    /// The data is read from the external store: no node has it, or the link is faster.
    ReadExternal {
        /// The instance that needs it.
        instance: InstanceId,
    },
    /// The data comes from another node.
    FetchPeer {
        /// The instance that needs it.
        instance: InstanceId,
        /// The node it comes from.
        from: NodeId,
    },
    /// The data comes from another node, at which it is still arriving.
    FollowPeer {
        /// The instance that needs it.
        instance: InstanceId,
        /// The node it comes from.
        from: NodeId,
    },
    /// The data lies on a slower tier of the same node.
    PromoteForUse {
        /// The instance that needs it.
        instance: InstanceId,
    },
    /// It is retained: it lies where it is needed, nothing moves.
    Retained {
        /// The bytes that did not move.
        bytes: u64,
    },
    /// The last version goes to its `dest`.
    Deliver,
    /// `stage-through`: what a step made goes out.
    StageOut,
    /// `cache`: what a step made goes out, and stays on its node as well.
    WriteThrough,
    /// A further replica, as `copies` asks.
    Copies {
        /// Replicas wanted.
        wanted: u32,
    },
    /// Nobody will read it any more.
    NotNeeded,
    /// No step of this run will read it any more: it stays for later runs while its tier has space.
    Cached,
    /// The workflow has ended and nothing asks to keep it.
    WorkflowEnded,
    /// `stage-through`: a node keeps nothing after a step.
    StagedOut,
    /// A tier is full and what is under way can still free room there.
    WaitForRoom {
        /// The tier.
        spot: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A tier is full and replicas are on their way off it.
    MakingRoom {
        /// The tier.
        spot: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
        /// Bytes being removed.
        evicting: u64,
        /// Bytes on their way to a slower tier.
        demoting: u64,
        /// Bytes on their way to the external store.
        draining: u64,
    },
    /// A tier is full, and it is not this run that can free room: others hold a part of it.
    WaitForOthers {
        /// The tier.
        spot: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of the tier that other runs hold, or data kept from earlier ones.
        held: u64,
    },
    /// A tier is full and this is not needed by anything that waits.
    EvictForRoom {
        /// The tier.
        spot: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A tier is full, everything on it is needed: this goes to a slower tier.
    DemoteForRoom {
        /// The tier.
        spot: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A tier is full, slower tiers too: this goes to the external store.
    DrainForRoom {
        /// The tier.
        spot: TierRef,
        /// Bytes wanted.
        want: u64,
        /// Bytes free.
        free: u64,
    },
    /// A verified replica lies elsewhere; this one made room.
    MovedAway {
        /// The transfer that moved it.
        transfer: TransferId,
    },
    /// It was assigned, but the room for its inputs went to others before they were there.
    RoomGone,
    /// It was assigned, but an entry that it reads was changed or added to before it began.
    EntryChanged {
        /// The dataset.
        data: DataId,
    },
    /// No node has enough free cores, memory or GPUs.
    WaitForCores {
        /// The node that will be free first.
        node: NodeId,
        /// In how long, as far as is known.
        free_in: Nanos,
    },
    /// Waiting for the node that has the data ends sooner than moving the data.
    WaitForData {
        /// The node.
        node: NodeId,
        /// In how long it is free, as far as is known.
        free_in: Nanos,
    },
    /// It would fit now, but another goes first.
    WaitForTurn {
        /// The first in the queue that waits.
        first: InstanceId,
    },
    /// An earlier run committed the same: same command, environment and inputs.
    Unchanged,
    /// A replica does not match its hash any more.
    Damaged,
    /// It was committed, but its output is needed and no replica is left.
    OutputLost {
        /// The dataset.
        data: DataId,
    },
    /// Its lost output came back with its node before it was made again: it need not run.
    OutputBack {
        /// The dataset.
        data: DataId,
    },
    /// A node that it had a place on is lost.
    NodeLost {
        /// The node.
        node: NodeId,
    },
    /// The copy that it was reading from, on its way itself, has failed.
    ChainBroken,
    /// It came back with its node after it had been given up: it is being made again, or was.
    GivenUp,
    /// The nodes that are left cannot run it, and some are lost.
    WaitForLost {
        /// How many.
        nodes: u32,
    },
    /// Something failed for good, so nothing new is started.
    AfterFailure {
        /// What failed.
        about: Subject,
    },
    /// It failed for good, and whatever does not need it goes on.
    GaveUp {
        /// What failed, as it was reported.
        message: String,
    },
    /// It is not run because of a failure.
    NotRun {
        /// What failed, of all that it needs.
        needs: Subject,
        /// Of a step: its instances that need nothing that failed, and that were not started after the failure that stopped the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_started: Option<NotStarted>,
    },
    /// All is done that does not need what has failed.
    Incomplete {
        /// The first few that failed.
        failed: Vec<Subject>,
        /// How many failed.
        failures: u64,
        /// The first few steps that did not run, or not all of them, because of it.
        not_run: Vec<StepId>,
        /// How many steps.
        steps: u64,
    },
    /// Rescue: the run has failed, or is to end (SIGTERM), and the dataset asks to be drained.
    Rescue,
    /// The dataset asks to be drained, and nothing of it was.
    NotRescued {
        /// Why.
        message: String,
    },
    /// The dataset asks to be drained. All of it had been made, and only what was left of it could be copied.
    RescuedInPart {
        /// How much, and why not all.
        message: String,
    },
    /// What failed, as it was reported.
    Failed {
        /// The message.
        message: String,
    },
    /// The run was asked to stop.
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// The run was interrupted; this was not finished and begins anew.
    BeginAnew,
    /// Everything is done.
    AllDone,
}

/// Instances of a step that has instances which need what failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    /// How many need what failed.
    pub need_it: u64,
    /// How many do not.
    pub instances: u64,
    /// The failure that stopped the run.
    pub after: Subject,
}

impl Reason {
    /// The reason as a sentence, with the names of nodes, tiers and instances.
    pub fn explain_with(
        &self,
        workflow: &Workflow,
        node: &dyn Fn(NodeId) -> String,
        tier: &dyn Fn(TierRef) -> String,
        instance: &dyn Fn(InstanceId) -> String,
    ) -> String {
        let inst = |i: &InstanceId| instance(*i);
        let tier = |s: &TierRef| tier(*s);
        let node = |n: &NodeId| node(*n);
        let room = |s: &TierRef, want: &u64, free: &u64| {
            format!(
                "{} wanted on {}, {} free",
                Bytes(*want),
                tier(s),
                Bytes(*free)
            )
        };
        let subject = |about: &Subject| match about {
            Subject::Instance(i) => inst(i),
            Subject::Step(s) => name(workflow.steps.get(s.at()).map(|s| &s.name), s),
            Subject::Data(d) => format!(
                "moving {}",
                name(workflow.data.get(d.at()).map(|d| &d.name), d)
            ),
            Subject::Tier(s) => tier(s),
            Subject::Run => "the run".into(),
        };
        match self {
            Self::Needed => "the workflow reads it".into(),
            Self::EarliestEnd {
                node: n,
                free_in,
                data_in,
                missing,
                local,
                next,
                thriftier,
            } => {
                let mut s = format!(
                    "{} ends first: cores free in {}, data there in {} ({} local, {} to fetch)",
                    node(n),
                    Elapsed(*free_in),
                    Elapsed(*data_in),
                    Bytes(*local),
                    Bytes(*missing)
                );
                if let (Some((other, _)), true) = (next, thriftier) {
                    let _ = write!(s, "; {} would too, but draws more or is warmer", node(other));
                } else if let Some((other, later)) = next {
                    let _ = write!(s, "; {} would end {} later", node(other), Elapsed(*later));
                }
                s
            }
            Self::FirstFree { node: n } => format!("{} is the first free node", node(n)),
            Self::FirstInQueue { node: n } => {
                format!("it is the first in the queue and {} is free", node(n))
            }
            Self::Backfill { node: n } => format!(
                "{} is free, and no earlier entry of the queue is delayed",
                node(n)
            ),
            Self::SameNodes { node: n } => {
                format!("{} is where most of its input was made", node(n))
            }
            Self::Ready => "inputs are there and cores are free".into(),
            Self::Retry { attempt, of } => {
                format!("attempt {attempt} of {of}: the one before it failed")
            }
            Self::Restart {
                from,
                restart,
                failures,
                retries,
            } => {
                let from = match from {
                    Some(id) => format!("restarted from version {id}"),
                    None => "started again".into(),
                };
                let vain = match failures {
                    0 => String::new(),
                    n => format!("; {n} of {retries} retries used up"),
                };
                format!("{from} ({} restart{vain})", ordinal(*restart))
            }
            Self::CheckpointsThere { node: n } => format!("{} has its checkpoints", node(n)),
            Self::Buddy { node: n } => format!("it continues there if {} is lost", node(n)),
            Self::NoBuddy { bytes } => format!(
                "no copy of its images is made: no other node that could run it has {} free for them",
                Bytes(*bytes)
            ),
            Self::PartitionThere { node: n, partition } => {
                let name = name(
                    workflow.partitions.get(partition.at()).map(|p| &p.name),
                    partition,
                );
                format!("{} has its partition {name}", node(n))
            }
            Self::Used => "all steps that use it have committed".into(),
            Self::Committed => "it has committed".into(),
            Self::OtherTier => "it starts again on another tier".into(),
            Self::ReadExternal { instance } => {
                format!(
                    "{} needs it and the external store is its best source",
                    inst(instance)
                )
            }
            Self::FetchPeer { instance, from } => {
                format!("{} needs it and {} has it", inst(instance), node(from))
            }
            Self::FollowPeer { instance, from } => {
                format!(
                    "{} needs it and it is arriving at {}",
                    inst(instance),
                    node(from)
                )
            }
            Self::PromoteForUse { instance } => {
                format!("{} needs it on the faster tier", inst(instance))
            }
            Self::Retained { bytes } => format!("{} are already stored where they are needed", Bytes(*bytes)),
            Self::Deliver => "the last version goes to its dest".into(),
            Self::StageOut => "stage-through sends every output to the external store".into(),
            Self::WriteThrough => {
                "cache sends every output to the external store and keeps it here while there is space"
                    .into()
            }
            Self::Copies { wanted } => format!("{wanted} replicas are asked for"),
            Self::NotNeeded => "no step will read it any more".into(),
            Self::Cached => {
                "no step of this run will read it any more; it stays for later runs while its tier has space"
                    .into()
            }
            Self::WorkflowEnded => "the workflow has ended and nothing asks to keep it".into(),
            Self::StagedOut => "stage-through keeps nothing on the nodes".into(),
            Self::WaitForRoom { spot, want, free } => {
                format!(
                    "waiting: {}; running steps and transfers have to end first",
                    room(spot, want, free)
                )
            }
            Self::MakingRoom {
                spot,
                want,
                free,
                evicting,
                demoting,
                draining,
            } => {
                let ways = [
                    (evicting, "being removed"),
                    (demoting, "on their way to a slower tier"),
                    (draining, "on their way to the external store"),
                ];
                let making: Vec<_> = ways
                    .iter()
                    .filter(|(bytes, _)| **bytes > 0)
                    .map(|(bytes, how)| format!("{} {how}", Bytes(**bytes)))
                    .collect();
                format!(
                    "waiting: {}; space is being freed: {}",
                    room(spot, want, free),
                    making.join(", ")
                )
            }
            Self::WaitForOthers {
                spot,
                want,
                free,
                held,
            } => {
                format!(
                    "waiting: {}; other runs, or data kept from earlier ones, hold {} of it",
                    room(spot, want, free),
                    Bytes(*held)
                )
            }
            Self::EvictForRoom { spot, want, free } => {
                format!("evicted, not needed: {}", room(spot, want, free))
            }
            Self::DemoteForRoom { spot, want, free } => {
                format!("demoted: {}", room(spot, want, free))
            }
            Self::DrainForRoom { spot, want, free } => {
                format!("drained to the external store: {}", room(spot, want, free))
            }
            Self::MovedAway { transfer } => {
                format!("{transfer} has put a verified replica elsewhere")
            }
            Self::RoomGone => {
                "other data took the space for its inputs before they arrived; tarn looks for a node again"
                    .into()
            }
            Self::EntryChanged { data } => {
                let name = name(workflow.data.get(data.at()).map(|d| &d.name), data);
                format!(
                    "another instance wrote to an entry of `{name}` that this instance reads, before it started; it now waits for all \
                     writers of that entry"
                )
            }
            Self::WaitForCores { node: n, free_in } => {
                format!(
                    "no node is free; {} will be in about {}",
                    node(n),
                    Elapsed(*free_in)
                )
            }
            Self::WaitForData { node: n, free_in } => format!(
                "{} has the data and is free in about {}; moving the data would take longer",
                node(n),
                Elapsed(*free_in)
            ),
            Self::WaitForTurn { first } => format!(
                "waiting: it would fit, but {} goes before it in the queue",
                inst(first)
            ),
            Self::Unchanged => {
                "an earlier run committed the same command, environment and inputs".into()
            }
            Self::Damaged => "the replica does not match its hash".into(),
            Self::OutputLost { data } => {
                let name = name(workflow.data.get(data.at()).map(|d| &d.name), data);
                format!("no replica of {name} is left and it is needed")
            }
            Self::OutputBack { data } => {
                let name = name(workflow.data.get(data.at()).map(|d| &d.name), data);
                format!("{name} came back with its node: it need not be made again")
            }
            Self::NodeLost { node: n } => format!("{} is lost", node(n)),
            Self::ChainBroken => "the copy that it was reading from has failed".into(),
            Self::GivenUp => "it came back with its node after it had been given up".into(),
            Self::WaitForLost { nodes } => format!(
                "waiting: the nodes that are left cannot run it, and {nodes} of the run {} lost",
                if *nodes == 1 { "is" } else { "are" }
            ),
            Self::AfterFailure { about } => {
                format!("{} failed; nothing new is started", subject(about))
            }
            Self::GaveUp { message } => format!("{message}; steps that do not need it continue"),
            Self::NotRun {
                needs,
                not_started: None,
            } => format!("not run: needs {}, which failed", subject(needs)),
            Self::NotRun {
                needs,
                not_started: Some(n),
            } => format!(
                "not run: {} {} {}, which failed; {} {} not started after {} failed",
                n.need_it,
                if n.need_it == 1 { "needs" } else { "need" },
                subject(needs),
                n.instances,
                if n.instances == 1 { "was" } else { "were" },
                subject(&n.after)
            ),
            Self::Incomplete {
                failed,
                failures,
                not_run,
                steps,
            } => {
                let failed = some_of(failed.iter().map(subject), *failures);
                let step = |s: &StepId| name(workflow.steps.get(s.at()).map(|s| &s.name), s);
                match steps {
                    0 => format!("{failed} failed; everything else is done"),
                    _ => format!(
                        "{failed} failed; not run because of it: {}; everything else is done",
                        some_of(not_run.iter().map(step), *steps)
                    ),
                }
            }
            Self::Rescue => "the run ends early and the dataset asks to be drained".into(),
            Self::NotRescued { message } => format!("not rescued: {message}"),
            Self::RescuedInPart { message } => format!("because only some of its parts could be copied: {message}"),
            Self::Failed { message } => message.clone(),
            Self::Interrupted { signal } => format!("the run was asked to stop (signal {signal})"),
            Self::BeginAnew => "the run was interrupted; this starts again".into(),
            Self::AllDone => "every step is committed and every dest is written".into(),
        }
    }
}

/// 1st, 2nd, 3rd, 4th, 11th.
fn ordinal(n: u32) -> String {
    let suffix = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

/// A name from a table, or the id itself when it is not in there.
fn name(found: Option<&String>, id: &dyn std::fmt::Display) -> String {
    found.cloned().unwrap_or_else(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_are_english() {
        let all = [1, 2, 3, 4, 11, 12, 13, 21, 111, 122].map(ordinal);
        let expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 111th 122nd";
        assert_eq!(all.join(" "), expected);
    }
}
