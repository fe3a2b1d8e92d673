//! Nodes that a job prefers, as its data is there: `Prefer`, by features of the nodes' own names. docs/internals/site.md.

use crate::command::{SOON, answer};
use crate::{PendingReason, SlurmError, SlurmNodeState, SlurmSnapshot, expand_hostlist};
use std::collections::BTreeSet;

/// Has a job that waits prefer these nodes, and beside them as many others of its partition as it needs nodes: Slurm 24.11 never starts a
/// job that prefers fewer. False if it prefers none: it waits no longer, or too few nodes answer. Needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn prefer(job: u32, wished: &[String]) -> Result<bool, SlurmError> {
    let id = job.to_string();
    let output = answer(
        "squeue",
        &["-h", "-j", &id, "-t", "PD", "-o", "%A|%D|%P|%x"],
        SOON,
    )?;
    let Some(fields) = of_job(&output, job) else {
        return Ok(false);
    };
    let fields: Vec<&str> = fields.splitn(3, '|').collect();
    let [wants, partition, excluded] = fields[..] else {
        return Err(SlurmError::Answer {
            command: "squeue".into(),
            answer: output,
        });
    };
    let excluded = match excluded {
        "" | "(null)" | "N/A" => Vec::new(),
        list => expand_hostlist(list)?,
    };
    let output = answer(
        "sinfo",
        &["-h", "-N", "-p", partition, "-o", "%N|%t|%f"],
        SOON,
    )?;
    // `2-4`: it does with two.
    let wants = wants.split('-').next().and_then(|n| n.parse().ok());
    let chosen = chosen(&output, wants.unwrap_or(1), wished, &excluded);
    if chosen.is_empty() {
        return Ok(false);
    }
    for node in &chosen {
        name_feature(node)?;
    }
    let names: Vec<&str> = chosen.iter().map(|node| node.name).collect();
    let prefer = format!("prefer={}", names.join("|"));
    answer(
        "scontrol",
        &["update", &format!("jobid={job}"), &prefer],
        SOON,
    )?;
    Ok(true)
}

/// The text behind the number of a job in its line of `squeue`. Of an array that is named by its number there is a line
/// of each task.
fn of_job(output: &str, job: u32) -> Option<&str> {
    output.lines().find_map(|line| {
        let (number, rest) = line.trim().split_once(['|', ' '])?;
        (number.parse() == Ok(job)).then_some(rest.trim())
    })
}

/// A node of `sinfo`.
#[derive(Debug, Clone, Copy)]
struct SinfoNode<'a> {
    name: &'a str,
    is_idle: bool,
    features: &'a str,
}

/// Those of the wished nodes that a job can get, and others up to its number of nodes, those without a job first. None
/// if there are too few.
fn chosen<'a>(
    output: &'a str,
    wants: usize,
    wished: &[String],
    excluded: &[String],
) -> Vec<SinfoNode<'a>> {
    let mut seen = BTreeSet::new();
    let mut nodes = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.trim().splitn(3, '|').collect();
        let [name, state, features] = fields[..] else {
            continue;
        };
        let state = SlurmNodeState::parse(state);
        if state.is_usable() && !excluded.iter().any(|node| node == name) && seen.insert(name) {
            let is_idle = state.is_idle();
            nodes.push(SinfoNode {
                name,
                is_idle,
                features,
            });
        }
    }
    let at = |node: &SinfoNode<'_>| wished.iter().position(|name| name == node.name);
    let (mut chosen, mut others): (Vec<SinfoNode<'_>>, Vec<SinfoNode<'_>>) =
        nodes.into_iter().partition(|node| at(node).is_some());
    if chosen.is_empty() {
        return chosen;
    }
    chosen.sort_by_key(at);
    others.sort_by_key(|node| !node.is_idle);
    let missing = wants.saturating_sub(chosen.len());
    chosen.extend(others.into_iter().take(missing));
    if chosen.len() < wants {
        chosen.clear();
    }
    chosen
}

/// Sees to it that a node has a feature of its own name.
fn name_feature(node: &SinfoNode<'_>) -> Result<(), SlurmError> {
    let mut all: Vec<&str> = node.features.split(',').collect();
    all.retain(|feature| !matches!(*feature, "(null)" | ""));
    if all.contains(&node.name) {
        return Ok(());
    }
    all.push(node.name);
    let name = format!("nodename={}", node.name);
    let features = format!("availablefeatures={}", all.join(","));
    answer("scontrol", &["update", &name, &features], SOON).map(drop)
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
    /// Too few of them answer Slurm yet.
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
    let preferred = found.filter(|job| job.state.is_waiting() && !job.preferred.is_empty());
    let Some(preferred) = preferred else {
        return Ok(Preference::None);
    };
    // A name that is cut is of no node; nor are features of other names.
    let wished: Vec<String> = preferred.preferred.split('|').map(str::to_owned).collect();
    if preferred.is_incomplete || !wished.iter().all(|name| snapshot.nodes.contains_key(name)) {
        return Ok(Preference::None);
    }
    if !prefer(job, &wished)? {
        return Ok(Preference::NotYet);
    }
    if is_held {
        answer("scontrol", &["release", &job.to_string()], SOON)?;
    }
    Ok(Preference::Restored)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str =
        "n1|idle|n1\nn2|mix|(null)\nn3|alloc|fast\nn4|down*|(null)\nn5|idle|(null)\nn1|idle|n1\n";

    fn of(wants: usize, wished: &[&str], excluded: &[&str]) -> Vec<&'static str> {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let chosen = chosen(NODES, wants, &names(wished), &names(excluded));
        chosen.iter().map(|node| node.name).collect()
    }

    #[test]
    fn of_an_array_the_line_of_the_job_itself_is_read() {
        let output = "13          (null)\n12          n1|n2   \n112         n3\n";
        assert_eq!(of_job(output, 12), Some("n1|n2"));
        assert_eq!(of_job(output, 13), Some("(null)"));
        assert_eq!(of_job(output, 11), None);
        assert_eq!(of_job("13|1|q|\n12|2|p|n[4-5]\n", 12), Some("2|p|n[4-5]"));
        assert_eq!(of_job("12\n", 12), None);
    }

    #[test]
    fn a_job_prefers_as_many_nodes_as_it_needs() {
        assert_eq!(of(1, &["n3", "n1"], &[]), ["n3", "n1"]);
        assert_eq!(of(2, &["n2"], &[]), ["n2", "n1"]);
        assert_eq!(of(4, &["n2"], &[]), ["n2", "n1", "n5", "n3"]);
        assert_eq!(of(2, &["n2"], &["n1"]), ["n2", "n5"]);
    }

    #[test]
    fn a_job_prefers_none_where_it_could_not_run() {
        assert_eq!(of(1, &["n4"], &[]), [""; 0]);
        assert_eq!(of(5, &["n2"], &[]), [""; 0]);
        assert_eq!(of(1, &["n1", "elsewhere"], &["n1"]), [""; 0]);
    }
}
