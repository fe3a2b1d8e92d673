//! Reservations whose jobs Slurm does not come to: it stages a job once its backfill has looked at it, of a queue, by default, the
//! first 500 jobs (`bf_max_job_test`). Nodes that are kept for a job behind these would be idle for nothing.

use super::{AFTER_REFUSAL, Marks, ReservationWish, check};
use tarn_slurm::SlurmSnapshot;
use tarn_types::units::{Nanos, SECOND, Time};

/// For which nodes are kept idle for jobs that Slurm has not come to.
const MAX_UNCALLED: Nanos = 60 * SECOND;

impl Marks {
    /// Leaves the workflows of such reservations alone for a while, so that these go.
    pub(super) fn give_up_uncalled(
        &mut self,
        snapshot: &SlurmSnapshot,
        wishes: &[ReservationWish],
        now: Time,
        notes: &mut Vec<String>,
    ) {
        for (name, mark) in &mut self.marks {
            let wish = wishes.iter().find(|wish| wish.workflow == mark.workflow);
            let none_is_called = wish.is_some_and(|wish| wish.jobs.iter().all(|j| !j.is_called));
            let are_idle = mark.nodes.iter().all(|node| check::is_kept(snapshot, node));
            let is_uncalled = none_is_called && are_idle && mark.joined.is_empty();
            mark.uncalled = is_uncalled.then(|| mark.uncalled.unwrap_or(now));
            let since = mark.uncalled.map_or(0, |since| now.saturating_sub(since));
            if since >= MAX_UNCALLED && !self.left_alone.contains_key(&mark.workflow) {
                notes.push(format!(
                    "{name} is given up: its nodes were idle for {} s, and Slurm has called for the data of none of its jobs (is bf_max_job_test above the length of the queue?)",
                    since / SECOND
                ));
                let until = now.saturating_add(AFTER_REFUSAL);
                self.left_alone.insert(mark.workflow.clone(), until);
            }
        }
    }
}
