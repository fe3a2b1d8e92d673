//! Nodes that a job is not to get, as they have no space for its data: `ExcNodeList`. docs/internals/site.md.

use crate::command::{SOON, answer};
use crate::{SlurmError, SlurmNodeState, expand_hostlist};
use std::collections::{BTreeMap, BTreeSet};

/// The jobs that wait and exclude nodes, by the user or by tarn.
///
/// # Errors
/// When Slurm cannot be asked.
pub fn excluding() -> Result<BTreeSet<u32>, SlurmError> {
    let output = answer("squeue", &["-h", "-t", "PD", "-o", "%A|%x"], SOON)?;
    let lines = output.lines().filter_map(|line| line.split_once('|'));
    let excluding = lines.filter(|(_, nodes)| is_set(nodes));
    Ok(excluding.filter_map(|(job, _)| job.parse().ok()).collect())
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
        without.extend(spared(&nodes, wants, own, full));
    }
    let now = match is_set(excluded) {
        true => expand_hostlist(excluded)?,
        false => Vec::new(),
    };
    if without == BTreeSet::from_iter(now) {
        return Ok(());
    }
    let names: Vec<String> = without.into_iter().collect();
    let id = format!("jobid={job}");
    let names = format!("excnodelist={}", names.join(","));
    answer("scontrol", &["update", &id, &names], SOON).map(drop)
}

fn is_set(text: &str) -> bool {
    !matches!(text.trim(), "" | "(null)" | "N/A")
}

/// Which of the full nodes a job can do without. Of each kind of node as many stay as it wants, as it may need just that kind: a job that
/// can run nowhere is held by Slurm for good.
fn spared(nodes: &str, wants: usize, own: &[String], full: &[String]) -> Vec<String> {
    let mut kinds: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for line in nodes.lines() {
        let fields: Vec<&str> = line.trim().splitn(6, '|').collect();
        let [name, state, processors, memory, resources, features] = fields[..] else {
            continue;
        };
        if !SlurmNodeState::parse(state).is_usable() || own.iter().any(|node| node == name) {
            continue;
        }
        // A feature of the node's own name does not describe its kind.
        let features: Vec<&str> = features.split(',').filter(|f| *f != name).collect();
        let kind = format!("{processors}|{memory}|{resources}|{}", features.join(","));
        kinds.entry(kind).or_default().insert(name);
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
        spared(NODES, wants, &names(own), &names(full))
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
