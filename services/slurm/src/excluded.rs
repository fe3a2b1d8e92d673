//! Nodes that a job is not to get, as they have no space for its data: `ExcNodeList`. docs/internals/site.md.

use crate::command::{SOON, answer};
use crate::{SlurmError, SlurmNode, SlurmNodeState, SlurmSnapshot, expand_hostlist};
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
    if !job.state.is_waiting() || job.is_incomplete {
        return None;
    }
    let mut without: BTreeSet<String> = own.iter().cloned().collect();
    // The nodes of a reservation are not looked up; required nodes are its user's choice.
    if !full.is_empty() && job.reservation.is_empty() && job.required.is_empty() {
        let nodes = snapshot.nodes.values();
        let nodes = nodes.filter(|node| job.partitions.iter().any(|p| node.partitions.contains(p)));
        let wants = usize::try_from(job.min_nodes).unwrap_or(usize::MAX);
        without.extend(spared(nodes.filter_map(kind_of), wants, own, full));
    }
    (!job
        .excluded
        .iter()
        .collect::<BTreeSet<_>>()
        .iter()
        .copied()
        .eq(&without))
    .then_some(without)
}

/// Has Slurm keep a job from nodes. Needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn set_exclusion(job: u32, nodes: &BTreeSet<String>) -> Result<(), SlurmError> {
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let id = format!("jobid={job}");
    let names = format!("excnodelist={}", names.join(","));
    answer("scontrol", &["update", &id, &names], SOON).map(drop)
}

/// Has a job that waits not run on the nodes that its user excludes (`own`) and, as far as enough others are left for it, on those that are
/// `full`, in that order. Nothing else of its wishes changes; a job that has begun stays where it is. Needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn exclude(job: u32, own: &[String], full: &[String]) -> Result<(), SlurmError> {
    let id = job.to_string();
    let words = ["-h", "-j", &id, "-t", "PD", "-o", "%D|%P|%v|%x|%n"];
    let output = answer("squeue", &words, SOON)?;
    let Some(fields) = output.lines().next() else {
        return Ok(());
    };
    let fields: Vec<&str> = fields.trim().splitn(5, '|').collect();
    let [wants, partition, reservation, excluded, required] = fields[..] else {
        return Err(SlurmError::Answer {
            command: "squeue".into(),
            answer: output,
        });
    };
    let mut without: BTreeSet<String> = own.iter().cloned().collect();
    // The nodes of a reservation are not looked up; required nodes are its user's choice.
    if !full.is_empty() && !is_set(reservation) && !is_set(required) {
        let words = ["-h", "-N", "-p", partition, "-o", "%N|%t|%c|%m|%G|%f"];
        let nodes = answer("sinfo", &words, SOON)?;
        let wants = wants.parse().unwrap_or(usize::MAX);
        without.extend(spared(
            nodes.lines().filter_map(shown_kind),
            wants,
            own,
            full,
        ));
    }
    let now = match is_set(excluded) {
        true => expand_hostlist(excluded)?,
        false => Vec::new(),
    };
    if without == BTreeSet::from_iter(now) {
        return Ok(());
    }
    set_exclusion(job, &without)
}

fn is_set(text: &str) -> bool {
    !matches!(text.trim(), "" | "(null)" | "N/A")
}

/// A node that Slurm may give to a job, and what kind of node it is. A feature of the node's own name does not describe its kind.
fn kind_of(node: &SlurmNode) -> Option<(&str, String)> {
    let features: Vec<&str> = node.features.iter().map(String::as_str).collect();
    let kind = (node.cpus, node.memory, &node.gres[..]);
    node.state
        .is_usable()
        .then(|| (&node.name[..], kind_text(kind, &features, &node.name)))
}

/// The same of a line of `sinfo`.
fn shown_kind(line: &str) -> Option<(&str, String)> {
    let fields: Vec<&str> = line.trim().splitn(6, '|').collect();
    let [name, state, processors, memory, resources, features] = fields[..] else {
        return None;
    };
    let features: Vec<&str> = features.split(',').collect();
    let memory = memory.trim_end_matches('+').parse().unwrap_or(0);
    let kind = (processors.parse().unwrap_or(0), memory, resources);
    SlurmNodeState::parse(state)
        .is_usable()
        .then(|| (name, kind_text(kind, &features, name)))
}

fn kind_text(
    (processors, memory, resources): (u32, u64, &str),
    features: &[&str],
    name: &str,
) -> String {
    let features = features.iter().filter(|f| **f != name).copied();
    let features: Vec<&str> = features.collect();
    format!("{processors}|{memory}|{resources}|{}", features.join(","))
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

    const NODES: &str = "n1|idle|4|1000|(null)|n1\nn2|mix|4|1000|(null)|(null),n2\nn3|alloc|4|1000|(null)|n3\nn4|down*|4|1000|(null)|n4\n\
        g1|idle|4|1000|gpu:2|fast\ng2|idle|4|1000|gpu:2|fast\n";

    fn of(wants: usize, own: &[&str], full: &[&str]) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let nodes = NODES.lines().filter_map(shown_kind);
        spared(nodes, wants, &names(own), &names(full))
    }

    #[test]
    fn as_many_of_each_kind_stay_as_a_job_wants() {
        assert_eq!(of(1, &[], &["n1", "n3", "g1"]), ["n1", "g1"]);
        assert_eq!(of(1, &["n3"], &["n1"]), [""; 0]);
        assert_eq!(of(2, &[], &["g1", "n3", "n1"]), [""; 0]);
        assert_eq!(of(1, &[], &["n4", "elsewhere"]), [""; 0]);
        assert_eq!(of(1, &[], &["g2", "g1"]), ["g2"]);
    }

    #[test]
    fn what_slurm_leaves_out_is_nothing() {
        assert!(!is_set("(null)") && !is_set("") && is_set("n[1-3]"));
    }
}
