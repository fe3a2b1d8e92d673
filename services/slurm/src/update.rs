//! One change of a waiting job: the jobs that it waits for, and the nodes that it must have, prefers, or is not to get.

use crate::command::{SOON, answer};
use crate::conditions::{PresentConditions, conditions, excluded_now, names};
use crate::excluded::excluded_nodes;
use crate::preferred::{PreferredNodes, name_features, preferred_nodes};
use crate::{SlurmError, SlurmJob, SlurmSnapshot};
use std::collections::BTreeSet;
use tarn_proto::site::{PlacementAdvice, SlurmUpdate};

const DEPENDENCY: &str = "dependency=";
const PREFER: &str = "prefer=";
const REQUIRE: &str = "reqnodelist=";
const EXCLUDE: &str = "excnodelist=";

/// A change of a job, and the nodes on which it is expected then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlacedJobChange {
    /// The change; nothing in it if there is none.
    pub update: SlurmUpdate,
    /// As far as they are known.
    pub expected: Vec<String>,
    /// The nodes that it is not to get from then on, if that changes.
    pub excluded: Option<BTreeSet<String>>,
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
        let (all, _) = dependency(&job.dependency, &advice.after);
        words.push(format!("{DEPENDENCY}{all}"));
    }
    // Of a job that was submitted a moment ago, its own exclusions are known from its submission alone.
    let own = advice.exclude.as_ref().map(|exclude| &exclude.own[..]);
    let mut now = names(&job.excluded);
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
        words.push(format!("{REQUIRE}{}", advice.require.join(",")));
        expected.clone_from(&advice.require);
    } else if job.required.is_empty() && (job.preferred.is_empty() || advice.is_again) {
        // Only a preference: the job does without where there are too few.
        preferred = preferred_nodes(snapshot, job, &advice.prefer, &excluded);
        if !preferred.names.is_empty() {
            words.push(format!("{PREFER}{}", preferred.names.join("|")));
            expected.clone_from(&preferred.names);
        }
    }
    let is_changed = excluded != now;
    if is_changed {
        let names: Vec<&str> = excluded.iter().map(String::as_str).collect();
        words.push(format!("{EXCLUDE}{}", names.join(",")));
    }
    let mut seen = conditions(job);
    seen.excluded = now.into_iter().collect();
    Some(PlacedJobChange {
        update: SlurmUpdate {
            job: number,
            words,
            unnamed: preferred.unnamed,
            after: advice.after.clone(),
            seen: Some(seen),
        },
        expected,
        excluded: is_changed.then_some(excluded),
    })
}

/// The change of a job that was not read, or of which a text may be cut: it waits for the makers of its inputs. Its other conditions
/// are read when the change is made.
#[must_use]
pub fn unread_job_change(number: u32, advice: &PlacementAdvice) -> PlacedJobChange {
    PlacedJobChange {
        update: SlurmUpdate {
            job: number,
            after: advice.after.clone(),
            ..SlurmUpdate::default()
        },
        ..PlacedJobChange::default()
    }
}

/// A job's own conditions as `scontrol update` takes them, and that these jobs and their data are ready. Whether that changes them.
fn dependency(own: &str, after: &[u32]) -> (String, bool) {
    let own = without_states(own);
    let missing = after.iter().filter(|other| {
        let mut words = own.split([',', '?']);
        !words.any(|word| word == format!("afterburstbuffer:{other}"))
    });
    let wanted = missing.map(|other| format!("afterok:{other},afterburstbuffer:{other}"));
    let wanted: Vec<String> = wanted.collect();
    let is_changed = !wanted.is_empty();
    let own = Some(own).filter(|own| !own.is_empty());
    let all: Vec<String> = own.into_iter().chain(wanted).collect();
    (all.join(","), is_changed)
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

/// Makes a change, by one call of `scontrol`: of a job whose user has changed it since the change was decided, only as far as the
/// user's wish stays. Needs Slurm's own rights.
///
/// # Errors
/// When Slurm cannot be asked, or refuses.
pub fn apply_update(update: &SlurmUpdate) -> Result<(), SlurmError> {
    if update.words.is_empty() && update.after.is_empty() {
        return Ok(());
    }
    let present = PresentConditions::read(update.job)?;
    let excludes = update.words.iter().any(|word| word.starts_with(EXCLUDE));
    let excluded = excludes.then(|| excluded_now(update.job)).transpose()?;
    let words = merged(update, &present, excluded.as_ref());
    if words.is_empty() {
        return Ok(());
    }
    if words.iter().any(|word| word.starts_with(PREFER)) {
        name_features(&update.unnamed)?;
    }
    let id = format!("jobid={}", update.job);
    let words: Vec<&str> = ["update", &id]
        .into_iter()
        .chain(words.iter().map(String::as_str))
        .collect();
    answer("scontrol", &words, SOON).map(drop)
}

/// The words of a change that leave its user's conditions as they are now. Jobs that it is to wait for are added to those; nodes are
/// changed only where they are as they were when the change was decided.
fn merged(
    update: &SlurmUpdate,
    present: &PresentConditions,
    excluded: Option<&BTreeSet<String>>,
) -> Vec<String> {
    let mut words = Vec::new();
    if !update.after.is_empty() {
        let (all, is_changed) = dependency(&present.dependency, &update.after);
        words.extend(is_changed.then(|| format!("{DEPENDENCY}{all}")));
    }
    let has_nodes = update
        .seen
        .as_ref()
        .is_none_or(|seen| present.has_nodes_of(seen));
    let has_exclusions = update
        .seen
        .as_ref()
        .is_none_or(|seen| excluded.is_none_or(|now| *now == names(&seen.excluded)));
    let kept = update.words.iter().filter(|word| match &word[..] {
        word if word.starts_with(DEPENDENCY) => update.after.is_empty(),
        word if word.starts_with(PREFER) || word.starts_with(REQUIRE) => has_nodes,
        word if word.starts_with(EXCLUDE) => has_exclusions,
        _ => true,
    });
    words.extend(kept.cloned());
    words
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

    fn update() -> SlurmUpdate {
        let words = [
            "dependency=afterok:7,afterburstbuffer:7",
            "prefer=n1",
            "excnodelist=n2,n3",
        ];
        SlurmUpdate {
            job: 9,
            words: words.map(str::to_owned).to_vec(),
            unnamed: Vec::new(),
            after: vec![7],
            seen: Some(tarn_proto::site::SlurmJobConditions {
                excluded: vec!["n2".to_owned()],
                ..Default::default()
            }),
        }
    }

    #[test]
    fn a_condition_that_its_user_has_changed_since_stays() {
        let nodes = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
        let as_seen: BTreeSet<String> = nodes(&["n2"]);
        let present = PresentConditions::default();
        let all = merged(&update(), &present, Some(&as_seen));
        assert_eq!(all, update().words);
        // Its user has it wait for a job: it waits for that too.
        let waits = PresentConditions {
            dependency: "afterok:5(unfulfilled)".to_owned(),
            ..present.clone()
        };
        let words = merged(&update(), &waits, Some(&as_seen));
        assert_eq!(
            words[0],
            "dependency=afterok:5,afterok:7,afterburstbuffer:7"
        );
        // Other exclusions, none at all, another preference, nodes that it must have.
        for now in [nodes(&["n4"]), BTreeSet::new()] {
            let words = merged(&update(), &present, Some(&now));
            assert_eq!(words, update().words[..2]);
        }
        let prefers = PresentConditions {
            preferred: "n3".to_owned(),
            ..present.clone()
        };
        let requires = PresentConditions {
            required: nodes(&["n3"]),
            ..present.clone()
        };
        for now in [prefers, requires] {
            let words = merged(&update(), &now, Some(&as_seen));
            assert_eq!(
                words,
                [
                    "dependency=afterok:7,afterburstbuffer:7",
                    "excnodelist=n2,n3"
                ]
            );
        }
    }

    #[test]
    fn a_job_that_was_not_read_keeps_its_users_conditions() {
        let advice = PlacementAdvice {
            after: vec![7],
            prefer: vec!["n1".to_owned()],
            ..PlacementAdvice::default()
        };
        let update = unread_job_change(9, &advice).update;
        // A client of an earlier version would replace them by these words.
        assert_eq!(update.words, [""; 0]);
        let present = PresentConditions {
            dependency: "afterok:5(unfulfilled)".to_owned(),
            ..PresentConditions::default()
        };
        let words = merged(&update, &present, None);
        assert_eq!(words, ["dependency=afterok:5,afterok:7,afterburstbuffer:7"]);
        let waits = PresentConditions {
            dependency: "afterok:7(unfulfilled),afterburstbuffer:7(unfulfilled)".to_owned(),
            ..PresentConditions::default()
        };
        assert_eq!(merged(&update, &waits, None), [""; 0]);
    }
}
