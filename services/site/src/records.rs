//! Records of jobs: what their data was and how it moved, kept when a job is forgotten, for the site's history
//! (docs/internals/digital-twin.md).

use crate::model::catalog::VersionKey;
use crate::model::job::{NodeJobTask, SiteJob, SiteJobPhase};
use crate::state::Site;
use tarn_proto::site::{
    ControllerReply, JobDataRecord, MAX_RECORD_USES, RecordedUse, SlurmJobId, Stage, Uid,
};
use tarn_types::units::Time;

impl Site {
    /// A stage of a job begins.
    pub(crate) fn record_stage(&mut self, id: SlurmJobId, stage: &Stage) {
        let now = self.now;
        let Some(record) = self.open_record(id) else {
            return;
        };
        match stage {
            Stage::DataIn | Stage::Ahead(_) => record.taken_in = now,
            Stage::PreRun(_) => (record.began, record.fetched) = (now, 0),
            Stage::PostRun { .. } => record.ended = now,
            Stage::Reported
            | Stage::Setup(_)
            | Stage::DataOut
            | Stage::PutBack
            | Stage::Teardown { .. } => {}
        }
    }

    /// A stage of a job is over.
    pub(crate) fn record_stage_end(&mut self, id: SlurmJobId) {
        let now = self.now;
        let phase = self.jobs.get(&id).map(|job| job.phase);
        let Some(record) = self.open_record(id) else {
            return;
        };
        match phase {
            Some(SiteJobPhase::Queued) if record.began == 0 => record.taken_in = now,
            Some(SiteJobPhase::Sent) => record.delivered = now,
            _ => {}
        }
    }

    /// Something was moved for a job.
    pub(crate) fn record_move(
        &mut self,
        id: SlurmJobId,
        step: &NodeJobTask,
        is_near: bool,
        (bytes, since): (u64, Time),
    ) {
        let now = self.now;
        let time = now.saturating_sub(since);
        let has_nodes = self.jobs.get(&id).map(|job| job.phase) == Some(SiteJobPhase::Staging);
        let Some(record) = self.open_record(id) else {
            return;
        };
        match step {
            NodeJobTask::Fetch(_) => {
                if has_nodes {
                    record.fetched = now;
                }
                let moved = if is_near {
                    &mut record.between_nodes
                } else {
                    &mut record.read_outside
                };
                moved.add(bytes, time);
            }
            NodeJobTask::Send(_) => record.written_outside.add(bytes, time),
            _ => {}
        }
    }

    /// The record of a job that has not ended.
    fn open_record(&mut self, id: SlurmJobId) -> Option<&mut JobDataRecord> {
        let job = self.jobs.get(&id)?;
        if job.phase == SiteJobPhase::Ended {
            return None;
        }
        let empty = || JobDataRecord {
            job: id,
            user: job.user,
            owner: job.owner,
            workflow: job.workflow.clone(),
            taken_in: 0,
            began: 0,
            fetched: 0,
            ended: 0,
            delivered: 0,
            reads: Vec::new(),
            writes: Vec::new(),
            read_outside: Default::default(),
            written_outside: Default::default(),
            between_nodes: Default::default(),
        };
        Some(self.records.open(id, empty))
    }

    /// A job is over: its record is complete.
    pub(crate) fn close_record(&mut self, id: SlurmJobId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let uses = self.uses_of(job);
        let now = self.now;
        self.records.close(id, now, uses);
    }

    fn uses_of(&self, job: &SiteJob) -> [Vec<RecordedUse>; 2] {
        let is_several = job.nodes.len() > 1;
        let used = |version: &VersionKey, is_whole, keep| RecordedUse {
            owner: version.owner,
            workflow: version.workflow.clone(),
            dataset: version.dataset.clone(),
            version: version.version,
            bytes: self.catalog.bytes_of(version),
            is_whole,
            keep,
        };
        let reads = job.reads.iter().take(MAX_RECORD_USES);
        let makes = job.makes.iter().take(MAX_RECORD_USES);
        [
            reads
                .map(|r| used(&r.version, is_several && !r.on_first, false))
                .collect(),
            makes
                .map(|m| used(&m.version, false, m.dest.is_some()))
                .collect(),
        ]
    }

    /// The records of jobs that ended at this time or later, from this number on; of all users where `user` is none.
    pub(crate) fn job_records(
        &self,
        (since, from): (Time, u64),
        user: Option<Uid>,
    ) -> ControllerReply {
        let (records, next) = self.records.page(since, from, user);
        ControllerReply::Records { records, next }
    }
}
