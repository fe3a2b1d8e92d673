//! The calls of tarn's scripts by Slurm, and what follows from the replies.

use super::controller::StageCall;
use super::live::LivePhase;
use super::slurm::JobStage;
use super::world::SimulatedCluster;
use super::{Due, ServiceMode};
use tarn_proto::site::{ControllerReply, JobSubmission, Stage};

impl SimulatedCluster {
    pub(super) fn set_up(&mut self, number: u32) {
        self.call(number, Stage::Reported);
    }

    /// A job's script, as tarn reads it.
    pub(super) fn submission_of(&self, number: u32) -> Option<JobSubmission> {
        let live = self.live.get(&number)?;
        let script = self.handed_over.script(&self.work, live.work);
        let mut script = script.ok().flatten()?;
        let row = self.slurm.snapshot.jobs.get(&number)?;
        script.excludes = Some(row.excluded.to_vec());
        Some(script)
    }

    pub(super) fn data_in(&mut self, number: u32) {
        let nodes = match self.settings.mode {
            ServiceMode::Advise | ServiceMode::Drive => self.expected(number),
            ServiceMode::Without | ServiceMode::Observe => Vec::new(),
        };
        self.call(number, Stage::Ahead(nodes));
    }

    /// Slurm's scripts get their replies, one after the other.
    pub(super) fn take_replies(&mut self) {
        while let Some((call, reply)) = self.replies.pop_front() {
            self.replied(&call, reply);
        }
    }

    fn replied(&mut self, StageCall { job, stage }: &StageCall, reply: ControllerReply) {
        let job = *job;
        let (attempt, wait) = (self.attempt_of(job), self.settings.times.call);
        match (stage, reply) {
            (Stage::Reported, ControllerReply::Unknown) => {
                if let Some(script) = self.submission_of(job) {
                    self.call(job, Stage::Setup(Box::new(script)));
                }
            }
            (Stage::Reported | Stage::Setup(_), ControllerReply::Refused(why)) => {
                self.give_up(job, &why.text);
            }
            (Stage::Reported | Stage::Setup(_), reply) => {
                if let ControllerReply::Advice(advice) = reply {
                    self.follow_advice(vec![(job, advice)]);
                }
                self.after(wait, Due::DataIn(job, attempt));
            }
            (Stage::Ahead(_), _) => {
                self.after(wait, Due::Staged(job, attempt));
            }
            (Stage::PreRun(_), ControllerReply::Refused(why)) => {
                self.give_up(job, &why.text);
            }
            (Stage::PreRun(_), _) => self.after(wait, Due::Start(job, attempt)),
            (Stage::PostRun { .. }, reply) => {
                if let ControllerReply::Advices(advices) = reply {
                    self.follow_advice(advices);
                }
                self.after(wait, Due::DataOut(job, attempt));
            }
            (Stage::DataOut, _) => {
                self.slurm.note_out(job);
                self.note_sent(job);
                self.after(wait, Due::TearDown(job, attempt));
                self.release_dependents();
            }
            (Stage::PutBack, _) => self.set_up_again(job),
            (Stage::Teardown { .. }, _) => self.over(job),
            (Stage::DataIn, _) => {}
        }
    }

    /// The kept results of a job that tarn writes outside are there.
    fn note_sent(&mut self, number: u32) {
        let Some(live) = self.live.get(&number) else {
            return;
        };
        let job = self.work.jobs[live.work.at()].job.clone();
        let is_kept = |item: &tarn_types::site::ItemId| self.work.items[item.at()].item.keep;
        let mut writes = job.writes.iter();
        if let Some(flow) = job.flow
            && writes.any(|item| self.handed_over.has(*item) && is_kept(item))
        {
            self.record.delivered(flow, self.now);
        }
    }

    /// A job that Slurm has put back is set up again.
    fn set_up_again(&mut self, number: u32) {
        if self
            .live
            .get(&number)
            .is_some_and(|live| live.phase == LivePhase::Waits)
        {
            if let Some(queued) = self.slurm.queued.get_mut(&number) {
                queued.stage = JobStage::Uncalled;
            }
            self.become_eligible(number);
        }
    }
}
