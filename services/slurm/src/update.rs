//! One change of a waiting job: the jobs that it waits for, and the nodes that it must have, prefers, or is not to get.

use crate::command::{SOON, answer};
use crate::excluded::excluded_nodes;
use crate::preferred::{PreferredNodes, name_features, preferred_nodes};
use crate::{SlurmError, SlurmJob, SlurmSnapshot};
use std::collections::BTreeSet;
use tarn_proto::site::{PlacementAdvice, SlurmUpdate};

/// A change of a job, and the nodes on which it is expected then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacedJobChange {
    /// The change; nothing in it if there is none.
    pub update: SlurmUpdate,
    /// As far as they are known.
    pub expected: Vec<String>,
}

/// The change that has a job follow this advice: it waits for the makers of its inputs beside its user's own conditions, prefers the nodes
/// that have most of them if its user has no wish, and gets none where it would find no space. `None` if it waits no longer, or if a
/// text of it may be cut.
#[must_use]
pub fn job_change(
    snapshot: &SlurmSnapshot,
    number: u32,
    advice: &PlacementAdvice,
) -> Option<PlacedJobChange> {
    let job = snapshot
        .jobs
        .get(&number)
        .filter(|job| job.state.is_waiting() && !job.is_incomplete)?;
    let mut words = Vec::new();
    if !advice.after.is_empty() {
        words.push(format!("dependency={}", dependency(job, &advice.after)));
    }
    // Of a job that was submitted a moment ago, its own exclusions are known from its submission alone.
    let own = advice.exclude.as_ref().map(|exclude| &exclude.own[..]);
    let mut now: BTreeSet<String> = job.excluded.iter().cloned().collect();
    if job.lacks_exclusions {
        now.extend(own.into_iter().flatten().cloned());
    }
    let mut excluded = now.clone();
    if let Some(exclude) = &advice.exclude {
        excluded = excluded_nodes(snapshot, job, &exclude.own, &exclude.full);
    }
    let mut preferred = PreferredNodes::default();
    let mut expected = expected_nodes(snapshot, job);
    if !advice.require.is_empty() {
        words.push(format!("reqnodelist={}", advice.require.join(",")));
        expected.clone_from(&advice.require);
    } else if job.required.is_empty() && (job.preferred.is_empty() || advice.is_again) {
        // Only a preference: the job does without where there are too few.
        preferred = preferred_nodes(snapshot, job, &advice.prefer, &excluded);
        if !preferred.names.is_empty() {
            words.push(format!("prefer={}", preferred.names.join("|")));
            expected.clone_from(&preferred.names);
        }
    }
    if excluded != now {
        let names: Vec<&str> = excluded.iter().map(String::as_str).collect();
        words.push(format!("excnodelist={}", names.join(",")));
    }
    Some(PlacedJobChange {
        update: SlurmUpdate {
            job: number,
            words,
            unnamed: preferred.unnamed,
        },
        expected,
    })
}

/// Its own conditions as `scontrol update` takes them, and that these jobs and their data are ready.
fn dependency(job: &SlurmJob, after: &[u32]) -> String {
    let own = without_states(&job.dependency);
    let missing = after.iter().filter(|other| {
        let mut words = own.split([',', '?']);
        !words.any(|word| word == format!("afterburstbuffer:{other}"))
    });
    let wanted = missing.map(|other| format!("afterok:{other},afterburstbuffer:{other}"));
    let own = Some(own.clone()).filter(|own| !own.is_empty());
    let all: Vec<String> = own.into_iter().chain(wanted).collect();
    all.join(",")
}

/// The nodes that a job must have, or those that it prefers: features of nodes' own names.
#[must_use]
pub fn expected_nodes(snapshot: &SlurmSnapshot, job: &SlurmJob) -> Vec<String> {
    if !job.required.is_empty() {
        return job.required.to_vec();
    }
    let is_there = |name: &&str| {
        let node = snapshot.nodes.get(*name);
        node.is_some_and(|node| job.partitions.iter().any(|p| node.partitions.contains(p)))
    };
    let preferred = job.preferred.split('|').filter(is_there);
    preferred.map(str::to_owned).collect()
}

/// `afterok:1(unfulfilled),afterany:2(failed)` without what Slurm says of each.
fn without_states(output: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for character in output.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            character if depth == 0 => text.push(character),
            _ => {}
        }
    }
    text
}

/// Makes a change, by one call of `scontrol`. Needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn apply_update(update: &SlurmUpdate) -> Result<(), SlurmError> {
    if update.words.is_empty() {
        return Ok(());
    }
    name_features(&update.unnamed)?;
    let id = format!("jobid={}", update.job);
    let words: Vec<&str> = ["update", &id]
        .into_iter()
        .chain(update.words.iter().map(String::as_str))
        .collect();
    answer("scontrol", &words, SOON).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_says_of_dependencies_is_left_out() {
        assert_eq!(without_states(""), "");
        let output = "afterok:12(unfulfilled),afterany:3(failed)";
        assert_eq!(without_states(output), "afterok:12,afterany:3");
    }
}
