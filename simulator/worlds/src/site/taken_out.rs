//! Jobs that are taken out, with everything that waits for them.

use super::SimulatedSite;
use super::jobs::SimulatedJobPhase;
use tarn_ports::WorldError;
use tarn_types::site::{Fate, JobId, Submit, UnrunnableJob};

impl SimulatedSite {
    /// A job is taken out, with everything that waits for it.
    pub(super) fn take_out(&mut self, job: JobId, lacks: Option<String>) -> Result<(), WorldError> {
        let phase = self.phase(job);
        if phase == Some(SimulatedJobPhase::TakenOut) {
            return Ok(());
        }
        if phase != Some(SimulatedJobPhase::Waiting) {
            return self.refuse(format!(
                "takes out job {job}, which does not wait but is {phase:?}"
            ));
        }
        let mut waiting = vec![job];
        self.record
            .result
            .refused
            .push(UnrunnableJob { job, lacks });
        while let Some(next) = waiting.pop() {
            let slot = &mut self.jobs[next.at()];
            match slot.phase {
                SimulatedJobPhase::Waiting => self.open -= 1,
                SimulatedJobPhase::Unknown => {}
                _ => continue,
            }
            slot.phase = SimulatedJobPhase::TakenOut;
            self.record.job(next).fate = Fate::TakenOut;
            waiting.extend(self.waiting_for(next));
        }
        Ok(())
    }

    /// Jobs that wait for another one in any way.
    fn waiting_for(&mut self, job: JobId) -> Vec<JobId> {
        if self.waits.is_empty() {
            self.waits = self.all_waits();
        }
        let from = self.waits.partition_point(|w| w.0 < job);
        let waits = self.waits[from..].iter();
        waits.take_while(|w| w.0 == job).map(|w| w.1).collect()
    }

    fn all_waits(&self) -> Vec<(JobId, JobId)> {
        let mut waits = Vec::new();
        for (number, w) in (0u32..).zip(&self.work.jobs) {
            let reads = w
                .job
                .reads
                .iter()
                .filter_map(|r| self.producers[r.item.at()]);
            let comes_after = match w.submit {
                Submit::After(before) => Some(before),
                Submit::At(_) => None,
            };
            let after = w.job.after.iter().copied();
            let before = reads.chain(after).chain(w.job.continues).chain(comes_after);
            waits.extend(before.map(|b| (b, JobId(number))));
        }
        waits.sort_unstable();
        waits
    }
}
