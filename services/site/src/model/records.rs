//! The table of jobs' records.

use crate::MAX_RECORDS;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use tarn_proto::site::{JobDataRecord, MAX_RECORDS_SENT, RecordedUse, SlurmJobId, Uid};
use tarn_types::units::Time;

/// Records that one request looks at: a page of one user's may be short.
const LOOKED_AT: usize = 10_000;

/// Records of jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct JobRecords {
    /// Of jobs that have not ended.
    open: BTreeMap<SlurmJobId, JobDataRecord>,
    /// When each of those that have ended was over, and its record; the newest last.
    closed: VecDeque<(Time, JobDataRecord)>,
    /// How many have been forgotten.
    forgotten: u64,
}

impl JobRecords {
    pub(crate) fn open(
        &mut self,
        id: SlurmJobId,
        empty: impl FnOnce() -> JobDataRecord,
    ) -> &mut JobDataRecord {
        self.open.entry(id).or_insert_with(empty)
    }

    /// A job is over. One that never had nodes leaves no record.
    pub(crate) fn close(&mut self, id: SlurmJobId, now: Time, uses: [Vec<RecordedUse>; 2]) {
        let Some(mut record) = self.open.remove(&id) else {
            return;
        };
        if record.began == 0 {
            return;
        }
        [record.reads, record.writes] = uses;
        self.closed.push_back((now, record));
        while self.closed.len() > MAX_RECORDS {
            self.closed.pop_front();
            self.forgotten += 1;
        }
    }

    /// Some records, and the number from which on there may be more.
    pub(crate) fn page(
        &self,
        since: Time,
        from: u64,
        user: Option<Uid>,
    ) -> (Vec<JobDataRecord>, Option<u64>) {
        let skipped = usize::try_from(from.saturating_sub(self.forgotten)).unwrap_or(usize::MAX);
        // They end in the order of the times at which they were closed.
        let first = self.closed.partition_point(|(at, _)| *at < since);
        let begin = first.max(skipped);
        let mut records = Vec::new();
        for (at, (_, record)) in self.closed.iter().enumerate().skip(begin) {
            if records.len() >= MAX_RECORDS_SENT || at - begin >= LOOKED_AT {
                return (records, Some(self.forgotten + at as u64));
            }
            if user.is_none_or(|user| record.user == user) {
                records.push(record.clone());
            }
        }
        (records, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_proto::site::Owner;

    fn record(job: SlurmJobId, user: Uid) -> JobDataRecord {
        JobDataRecord {
            job,
            user,
            owner: Owner::User(user),
            workflow: "w".into(),
            taken_in: 1,
            began: 2,
            fetched: 0,
            ended: 3,
            delivered: 0,
            reads: Vec::new(),
            writes: Vec::new(),
            read_outside: Default::default(),
            written_outside: Default::default(),
            between_nodes: Default::default(),
        }
    }

    fn all(records: &JobRecords, since: Time, user: Option<Uid>) -> (Vec<SlurmJobId>, usize) {
        let (mut jobs, mut from, mut pages) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let (some, next) = records.page(since, at, user);
            assert!(some.len() <= MAX_RECORDS_SENT);
            jobs.extend(some.iter().map(|r| r.job));
            (from, pages) = (next, pages + 1);
        }
        (jobs, pages)
    }

    #[test]
    fn records_come_in_pages_and_the_newest_stay() {
        let mut records = JobRecords::default();
        let over = 700;
        for job in 0..(MAX_RECORDS + over) as u32 {
            records.open(job, || record(job, 1000 + job % 2));
            records.close(job, u64::from(job), Default::default());
        }
        let (jobs, pages) = all(&records, 0, None);
        assert_eq!(jobs.len(), MAX_RECORDS);
        assert_eq!(jobs.first(), Some(&(over as u32)));
        assert!(pages >= MAX_RECORDS / MAX_RECORDS_SENT);
        let (own, _) = all(&records, 0, Some(1001));
        assert!(own.iter().all(|job| job % 2 == 1));
        assert_eq!(own.len(), MAX_RECORDS / 2);
        let last = (MAX_RECORDS + over - 3) as u64;
        assert_eq!(all(&records, last, None).0.len(), 3);
        // While somebody reads, more end.
        let (_, next) = records.page(0, 0, None);
        records.open(1 << 30, || record(1 << 30, 7));
        records.close(1 << 30, u64::MAX, Default::default());
        let (some, _) = records.page(0, next.expect("more"), None);
        assert_eq!(some[0].job, (over + MAX_RECORDS_SENT) as u32);
    }

    #[test]
    fn a_job_without_nodes_leaves_no_record() {
        let mut records = JobRecords::default();
        records.open(1, || JobDataRecord {
            began: 0,
            ..record(1, 7)
        });
        records.close(1, 5, Default::default());
        records.close(2, 5, Default::default());
        assert!(all(&records, 0, None).0.is_empty());
    }
}
