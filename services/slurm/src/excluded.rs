//! Nodes that a job is not to get, as they have no space for its data: `ExcNodeList`. docs/internals/site.md.

use crate::command::{SOON, answer};
use crate::conditions::excluded_now;
use crate::{SlurmError, SlurmJob, SlurmNode, SlurmSnapshot};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes that a waiting job is not to get: those that its user excludes (`own`) and, as far as enough others are left for it,
/// those that are `full`, in that order. `None` if they are that already, if the job waits no longer, or if too little is known of
/// it.
pub fn exclusion(
    snapshot: &SlurmSnapshot,
    job: u32,
    own: &[String],
    full: &[String],
) -> Option<BTreeSet<String>> {
    let job = snapshot.jobs.get(&job)?;
    if !job.state.is_waiting() || job.is_incomplete || job.lacks_exclusions {
        return None;
    }
    let without = excluded_nodes(snapshot, job, own, full);
    let now: BTreeSet<&String> = job.excluded.iter().collect();
    (!now.into_iter().eq(&without)).then_some(without)
}

/// Those nodes, whatever the job excludes now.
pub(crate) fn excluded_nodes(
    snapshot: &SlurmSnapshot,
    job: &SlurmJob,
    own: &[String],
    full: &[String],
) -> BTreeSet<String> {
    let mut without: BTreeSet<String> = own.iter().cloned().collect();
    // The nodes of a reservation are not looked up; required nodes are its user's choice.
    if !full.is_empty() && job.reservation.is_empty() && job.required.is_empty() {
        let nodes = snapshot.nodes.values();
        let nodes = nodes.filter(|node| job.partitions.iter().any(|p| node.partitions.contains(p)));
        let wants = usize::try_from(job.min_nodes).unwrap_or(usize::MAX);
        without.extend(spared(nodes.filter_map(kind_of), wants, own, full));
    }
    without
}

/// Has Slurm keep a job from nodes, if it still excludes those that it was `seen` to: else its user has changed that meanwhile. Whether
/// it did. Needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn set_exclusion(
    job: u32,
    seen: &BTreeSet<String>,
    nodes: &BTreeSet<String>,
) -> Result<bool, SlurmError> {
    if excluded_now(job)? != *seen {
        return Ok(false);
    }
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let id = format!("jobid={job}");
    let names = format!("excnodelist={}", names.join(","));
    answer("scontrol", &["update", &id, &names], SOON)?;
    Ok(true)
}

/// A node that Slurm may give to a job, and what kind of node it is. A feature of the node's own name does not describe its kind.
fn kind_of(node: &SlurmNode) -> Option<(&str, String)> {
    let features = node.features.iter().filter(|f| **f != node.name);
    let features: Vec<&str> = features.map(String::as_str).collect();
    let kind = format!(
        "{}|{}|{}|{}",
        node.cpus,
        node.memory,
        node.gres,
        features.join(",")
    );
    node.state.is_usable().then_some((&node.name[..], kind))
}

/// Which of the full nodes a job can do without. Of each kind of node as many stay as it wants, as it may need just that kind: a job that
/// can run nowhere is held by Slurm for good.
fn spared<'n>(
    nodes: impl Iterator<Item = (&'n str, String)>,
    wants: usize,
    own: &[String],
    full: &[String],
) -> Vec<String> {
    let mut kinds: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, kind) in nodes {
        if !own.iter().any(|node| node == name) {
            kinds.entry(kind).or_default().insert(name);
        }
    }
    let mut spared = Vec::new();
    for node in full {
        let kind = kinds.values_mut().find(|kind| kind.contains(&node[..]));
        if let Some(kind) = kind.filter(|kind| kind.len() > wants) {
            kind.remove(&node[..]);
            spared.push(node.clone());
        }
    }
    spared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wants: usize, own: &[&str], full: &[&str]) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let nodes = ["n1", "n2", "n3"].map(|name| (name, "4|1000||".to_owned()));
        let gpus = ["g1", "g2"].map(|name| (name, "4|1000|gpu:2|fast".to_owned()));
        let nodes = nodes.into_iter().chain(gpus);
        spared(nodes, wants, &names(own), &names(full))
    }

    #[test]
    fn as_many_of_each_kind_stay_as_a_job_wants() {
        assert_eq!(of(1, &[], &["n1", "n3", "g1"]), ["n1", "n3", "g1"]);
        assert_eq!(of(1, &["n3"], &["n1", "n2"]), ["n1"]);
        assert_eq!(of(2, &[], &["g1", "n3", "n1"]), ["n3"]);
        assert_eq!(of(3, &[], &["n4", "elsewhere", "n1"]), [""; 0]);
        assert_eq!(of(1, &[], &["g2", "g1"]), ["g2"]);
    }
}
