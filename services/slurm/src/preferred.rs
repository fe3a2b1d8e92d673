//! Nodes that a job prefers, as its data is there: `Prefer`, by features of the nodes' own names. docs/internals/site.md.

use crate::command::{SOON, answer};
use crate::conditions::is_as_read;
use crate::{PendingReason, SlurmError, SlurmJob, SlurmNode, SlurmSnapshot};
use std::collections::BTreeSet;

/// Nodes that a job is to prefer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PreferredNodes {
    /// Their names, in order.
    pub(crate) names: Vec<String>,
    /// Those of them that have no feature of their own name yet.
    pub(crate) unnamed: Vec<String>,
}

/// Those of the wished nodes that a waiting job can get, and others of its partitions up to its number of nodes, those without a job
/// first: Slurm 24.11 never starts a job that prefers fewer. None if there are too few.
pub(crate) fn preferred_nodes<'s>(
    snapshot: &'s SlurmSnapshot,
    job: &SlurmJob,
    wished: &[String],
    excluded: &BTreeSet<String>,
) -> PreferredNodes {
    let nodes = snapshot.nodes.values().filter(|node| {
        node.state.is_usable()
            && !excluded.contains(&node.name)
            && job.partitions.iter().any(|p| node.partitions.contains(p))
    });
    let at = |node: &&SlurmNode| wished.iter().position(|name| *name == node.name);
    let (mut chosen, mut others): (Vec<&'s SlurmNode>, Vec<&'s SlurmNode>) =
        nodes.partition(|node| at(node).is_some());
    let wants = usize::try_from(job.min_nodes).unwrap_or(usize::MAX);
    if chosen.is_empty() {
        return PreferredNodes::default();
    }
    chosen.sort_by_key(at);
    others.sort_by_key(|node| !node.state.is_idle());
    let missing = wants.saturating_sub(chosen.len());
    chosen.extend(others.into_iter().take(missing));
    if chosen.len() < wants {
        return PreferredNodes::default();
    }
    let unnamed = chosen.iter().filter(|n| !n.features.contains(&n.name));
    PreferredNodes {
        unnamed: unnamed.map(|node| node.name.clone()).collect(),
        names: chosen.iter().map(|node| node.name.clone()).collect(),
    }
}

/// Sees to it that nodes have a feature of their own name. What they have is read again: a snapshot may have cut it.
pub(crate) fn name_features(nodes: &[String]) -> Result<(), SlurmError> {
    if nodes.is_empty() {
        return Ok(());
    }
    let output = answer(
        "sinfo",
        &["-h", "-N", "-n", &nodes.join(","), "-o", "%N|%f"],
        SOON,
    )?;
    let mut seen = BTreeSet::new();
    for (name, features) in output
        .lines()
        .filter_map(|line| line.trim().split_once('|'))
    {
        let mut all: Vec<&str> = features.split(',').collect();
        all.retain(|feature| !matches!(*feature, "(null)" | ""));
        // A node of several partitions has several lines.
        if !seen.insert(name) || all.contains(&name) {
            continue;
        }
        all.push(name);
        let node = format!("nodename={name}");
        let features = format!("availablefeatures={}", all.join(","));
        answer("scontrol", &["update", &node, &features], SOON)?;
    }
    Ok(())
}

/// The jobs that Slurm holds for good since no node fits their request. From 24.11 on it forgets features of nodes that
/// were set by `scontrol` when it starts again, and holds so the jobs that prefer nodes by them.
pub fn held_without_nodes(snapshot: &SlurmSnapshot) -> BTreeSet<u32> {
    let held = snapshot.jobs.values().filter(|job| {
        job.state.is_waiting() && job.priority == 0 && job.reason == PendingReason::BadConstraints
    });
    held.map(|job| job.number).collect()
}

/// The state of a job's preference for nodes by their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// It prefers none, or waits no longer.
    None,
    /// The nodes have their features again.
    Restored,
    /// Too few of them answer Slurm yet, or the job was changed meanwhile.
    NotYet,
}

/// Gives the nodes that a waiting job prefers their features again, and releases the job if Slurm holds it.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn restore_preference(
    snapshot: &SlurmSnapshot,
    job: u32,
    is_held: bool,
) -> Result<Preference, SlurmError> {
    let found = snapshot.jobs.get(&job);
    let preferring = found.filter(|job| job.state.is_waiting() && !job.preferred.is_empty());
    let Some(preferring) = preferring else {
        return Ok(Preference::None);
    };
    // A text that is cut names no node; nor do features of other names.
    let wished: Vec<String> = preferring.preferred.split('|').map(str::to_owned).collect();
    if preferring.is_incomplete || !wished.iter().all(|name| snapshot.nodes.contains_key(name)) {
        return Ok(Preference::None);
    }
    let excluded = preferring.excluded.iter().cloned().collect();
    let preferred = preferred_nodes(snapshot, preferring, &wished, &excluded);
    if preferred.names.is_empty() {
        return Ok(Preference::NotYet);
    }
    if !is_as_read(preferring)? {
        // Its user has changed it meanwhile: the next reading has that.
        return Ok(Preference::NotYet);
    }
    name_features(&preferred.names)?;
    let (id, prefer) = (format!("jobid={job}"), preferred.names.join("|"));
    answer(
        "scontrol",
        &["update", &id, &format!("prefer={prefer}")],
        SOON,
    )?;
    if is_held {
        answer("scontrol", &["release", &job.to_string()], SOON)?;
    }
    Ok(Preference::Restored)
}
