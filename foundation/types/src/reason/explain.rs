//! The sentence of a reason, with the names of its run.

use super::{NotStarted, Reason};
use crate::checkpoint::CheckpointId;
use crate::id::{DataId, InstanceId, NodeId, PartitionId, StepId, Subject, TierRef};
use crate::text::some_of;
use crate::units::{Bytes, Elapsed};
use crate::workflow::Workflow;
use std::fmt::{Display, Write};

/// The names of a run's nodes, tiers, instances, steps and datasets.
struct ReasonNames<'a> {
    workflow: &'a Workflow,
    node: &'a dyn Fn(NodeId) -> String,
    tier: &'a dyn Fn(TierRef) -> String,
    instance: &'a dyn Fn(InstanceId) -> String,
}

impl ReasonNames<'_> {
    fn node(&self, node: &NodeId) -> String {
        (self.node)(*node)
    }

    fn tier(&self, tier: &TierRef) -> String {
        (self.tier)(*tier)
    }

    fn instance(&self, instance: &InstanceId) -> String {
        (self.instance)(*instance)
    }

    fn step(&self, step: &StepId) -> String {
        let known = self.workflow.steps.get(step.at());
        name(known.map(|s| &s.name), step)
    }

    fn data(&self, data: &DataId) -> String {
        let known = self.workflow.data.get(data.at());
        name(known.map(|d| &d.name), data)
    }

    fn partition(&self, partition: &PartitionId) -> String {
        let known = self.workflow.partitions.get(partition.at());
        name(known.map(|p| &p.name), partition)
    }

    fn subject(&self, about: &Subject) -> String {
        match about {
            Subject::Instance(i) => self.instance(i),
            Subject::Step(s) => self.step(s),
            Subject::Data(d) => format!("moving {}", self.data(d)),
            Subject::Tier(t) => self.tier(t),
            Subject::Run => "the run".into(),
        }
    }

    /// The wanted space on a tier, and the free space there.
    fn space(&self, tier: &TierRef, want: &u64, free: &u64) -> String {
        let (want, free) = (Bytes(*want), Bytes(*free));
        format!("{want} wanted on {}, {free} free", self.tier(tier))
    }
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
        let names = ReasonNames {
            workflow,
            node,
            tier,
            instance,
        };
        match self {
            Self::Needed => "the workflow reads it".into(),
            Self::EarliestEnd { .. } => self.earliest_end(&names),
            Self::FirstFree { node: n } => format!("{} is the first free node", names.node(n)),
            Self::FirstInQueue { node: n } => {
                format!("it is the first in the queue and {} is free", names.node(n))
            }
            Self::Backfill { node: n } => format!(
                "{} is free, and no earlier entry of the queue is delayed",
                names.node(n)
            ),
            Self::SameNodes { node: n } => {
                format!("{} is where most of its input was made", names.node(n))
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
            } => restarted(*from, *restart, (*failures, *retries)),
            Self::CheckpointsThere { node: n } => format!("{} has its checkpoints", names.node(n)),
            Self::Buddy { node: n } => format!("it continues there if {} is lost", names.node(n)),
            Self::NoBuddy { bytes } => format!(
                "no copy of its images is made: no other node that could run it has {} free for them",
                Bytes(*bytes)
            ),
            Self::PartitionThere { node: n, partition } => {
                format!("{} has its partition {}", names.node(n), names.partition(partition))
            }
            Self::Used => "all steps that use it have committed".into(),
            Self::Committed => "it has committed".into(),
            Self::OtherTier => "it starts again on another tier".into(),
            Self::ReadExternal { instance } => {
                format!(
                    "{} needs it and the external store is its best source",
                    names.instance(instance)
                )
            }
            Self::FetchPeer { instance, from } => {
                format!("{} needs it and {} has it", names.instance(instance), names.node(from))
            }
            Self::FollowPeer { instance, from } => {
                format!(
                    "{} needs it and it is arriving at {}",
                    names.instance(instance),
                    names.node(from)
                )
            }
            Self::PromoteForUse { instance } => {
                format!("{} needs it on the faster tier", names.instance(instance))
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
            Self::WaitForSpace { tier_ref, want, free } => {
                format!(
                    "waiting: {}; running steps and transfers have to end first",
                    names.space(tier_ref, want, free)
                )
            }
            Self::MakingSpace {
                tier_ref,
                want,
                free,
                evicting,
                demoting,
                draining,
            } => format!(
                "waiting: {}; space is being freed: {}",
                names.space(tier_ref, want, free),
                freed_space(*evicting, *demoting, *draining)
            ),
            Self::WaitForOthers {
                tier_ref,
                want,
                free,
                held,
            } => {
                format!(
                    "waiting: {}; other runs, or data kept from earlier ones, hold {} of it",
                    names.space(tier_ref, want, free),
                    Bytes(*held)
                )
            }
            Self::EvictForSpace { tier_ref, want, free } => {
                format!("evicted, not needed: {}", names.space(tier_ref, want, free))
            }
            Self::DemoteForSpace { tier_ref, want, free } => {
                format!("demoted: {}", names.space(tier_ref, want, free))
            }
            Self::DrainForSpace { tier_ref, want, free } => {
                format!("drained to the external store: {}", names.space(tier_ref, want, free))
            }
            Self::MovedAway { transfer } => {
                format!("{transfer} has put a verified replica elsewhere")
            }
            Self::SpaceGone => {
                "other data took the space for its inputs before they arrived; tarn looks for a node again"
                    .into()
            }
            Self::EntryChanged { data } => {
                let name = names.data(data);
                format!(
                    "another instance wrote to an entry of `{name}` that this instance reads, before it started; it now waits for all \
                     writers of that entry"
                )
            }
            Self::WaitForCores { node: n, free_in } => {
                format!(
                    "no node is free; {} will be in about {}",
                    names.node(n),
                    Elapsed(*free_in)
                )
            }
            Self::WaitForData { node: n, free_in } => format!(
                "{} has the data and is free in about {}; moving the data would take longer",
                names.node(n),
                Elapsed(*free_in)
            ),
            Self::WaitForTurn { first } => format!(
                "waiting: it would fit, but {} goes before it in the queue",
                names.instance(first)
            ),
            Self::Unchanged => {
                "an earlier run committed the same command, environment and inputs".into()
            }
            Self::Damaged => "the replica does not match its hash".into(),
            Self::OutputLost { data } => {
                let name = names.data(data);
                format!("no replica of {name} is left and it is needed")
            }
            Self::OutputBack { data } => {
                let name = names.data(data);
                format!("{name} came back with its node: it need not be made again")
            }
            Self::NodeLost { node: n } => format!("{} is lost", names.node(n)),
            Self::ChainBroken => "the copy that it was reading from has failed".into(),
            Self::GivenUp => "it came back with its node after it had been given up".into(),
            Self::WaitForLost { nodes } => format!(
                "waiting: the nodes that are left cannot run it, and {nodes} of the run {} lost",
                if *nodes == 1 { "is" } else { "are" }
            ),
            Self::AfterFailure { about } => {
                format!("{} failed; nothing new is started", names.subject(about))
            }
            Self::GaveUp { message } => format!("{message}; steps that do not need it continue"),
            Self::NotRun { needs, not_started } => not_run(&names, needs, not_started.as_ref()),
            Self::Incomplete {
                failed,
                failures,
                not_run,
                steps,
            } => incomplete(&names, (failed, *failures), (not_run, *steps)),
            Self::Rescue => "the run ends early and the dataset asks to be drained".into(),
            Self::NotRescued { message } => format!("not rescued: {message}"),
            Self::RescuedInPart { message } => format!("because only some of its parts could be copied: {message}"),
            Self::Failed { message } => message.clone(),
            Self::Interrupted { signal } => format!("the run was asked to stop (signal {signal})"),
            Self::BeginAnew => "the run was interrupted; this starts again".into(),
            Self::AllDone => "every step is committed and every dest is written".into(),
        }
    }

    /// The sentence of [`Reason::EarliestEnd`].
    fn earliest_end(&self, names: &ReasonNames<'_>) -> String {
        let Self::EarliestEnd {
            node,
            free_in,
            data_in,
            missing,
            local,
            next,
            thriftier,
        } = self
        else {
            return String::new();
        };
        let mut s = format!(
            "{} ends first: cores free in {}, data there in {} ({} local, {} to fetch)",
            names.node(node),
            Elapsed(*free_in),
            Elapsed(*data_in),
            Bytes(*local),
            Bytes(*missing)
        );
        if let (Some((other, _)), true) = (next, thriftier) {
            let other = names.node(other);
            let _ = write!(s, "; {other} would too, but draws more or is warmer");
        } else if let Some((other, later)) = next {
            let _ = write!(
                s,
                "; {} would end {} later",
                names.node(other),
                Elapsed(*later)
            );
        }
        s
    }
}

fn restarted(from: Option<CheckpointId>, restart: u32, (failures, retries): (u32, u32)) -> String {
    let from = match from {
        Some(id) => format!("restarted from version {id}"),
        None => "started again".into(),
    };
    let used_up = match failures {
        0 => String::new(),
        n => format!("; {n} of {retries} retries used up"),
    };
    format!("{from} ({} restart{used_up})", ordinal(restart))
}

/// How space is being freed, and how much.
fn freed_space(evicting: u64, demoting: u64, draining: u64) -> String {
    let ways = [
        (evicting, "being removed"),
        (demoting, "on their way to a slower tier"),
        (draining, "on their way to the external store"),
    ];
    let ways = ways.iter().filter(|(bytes, _)| *bytes > 0);
    let ways: Vec<_> = ways
        .map(|(bytes, how)| format!("{} {how}", Bytes(*bytes)))
        .collect();
    ways.join(", ")
}

fn not_run(names: &ReasonNames<'_>, needs: &Subject, not_started: Option<&NotStarted>) -> String {
    let needs = names.subject(needs);
    let Some(n) = not_started else {
        return format!("not run: needs {needs}, which failed");
    };
    format!(
        "not run: {} {} {needs}, which failed; {} {} not started after {} failed",
        n.need_it,
        if n.need_it == 1 { "needs" } else { "need" },
        n.instances,
        if n.instances == 1 { "was" } else { "were" },
        names.subject(&n.after)
    )
}

/// The first few failed subjects, and of the steps that did not run because of it, with how many there are of each.
fn incomplete(
    names: &ReasonNames<'_>,
    (failed, failures): (&[Subject], u64),
    (not_run, steps): (&[StepId], u64),
) -> String {
    let failed = some_of(failed.iter().map(|s| names.subject(s)), failures);
    match steps {
        0 => format!("{failed} failed; everything else is done"),
        _ => format!(
            "{failed} failed; not run because of it: {}; everything else is done",
            some_of(not_run.iter().map(|s| names.step(s)), steps)
        ),
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
fn name(found: Option<&String>, id: &dyn Display) -> String {
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
