//! Jobs that slurmctld knows, those that ended within `MinJobAge` too: columns of fixed width, none of them a user's text.

use super::{AccountingAnswer, cpus_of, gpus_of, nodes_of, state_of};
use crate::SlurmError;
use crate::snapshot::fields::{Column, ColumnRecord, records};
use crate::snapshot::hostlist::NodeLists;
use crate::snapshot::values::{limit, memory_of, time};
use tarn_types::site::{AccountedJob, AccountedState};

/// The columns, for `squeue -O`.
pub(super) const COLUMNS: [Column; 17] = [
    ("JobID", 12, false),
    ("ArrayTaskID", 16, false),
    ("UserID", 12, false),
    ("Partition", 64, false),
    ("QOS", 40, false),
    ("State", 16, false),
    ("SubmitTime", 20, false),
    ("EligibleTime", 20, false),
    ("StartTime", 20, false),
    ("EndTime", 20, false),
    ("TimeLimit", 20, false),
    ("NumNodes", 12, false),
    ("NumCPUs", 12, false),
    ("tres-alloc", 160, false),
    ("NodeList", 1024, false),
    ("Reservation", 64, false),
    ("RestartCnt", 8, false),
];

pub(super) fn read(bytes: &[u8]) -> Result<AccountingAnswer, SlurmError> {
    let mut lists = NodeLists::default();
    let mut answer = AccountingAnswer::default();
    for record in records("squeue", bytes, &COLUMNS, false)? {
        match to_job(&record, &mut lists) {
            Some(job) => answer.jobs.push(job),
            None => answer.unreadable += 1,
        }
    }
    Ok(answer.bound())
}

fn to_job(record: &ColumnRecord<'_>, lists: &mut NodeLists) -> Option<AccountedJob> {
    let nodes = nodes_of(lists, record.get("NodeList"))?;
    let state = state_of(record.get("State"), false)?;
    let has_begun = !nodes.is_empty();
    let has_ended = !matches!(state, AccountedState::Running | AccountedState::Waiting);
    let resources = record.get("tres-alloc");
    let cpus = u64::from(record.small("NumCPUs"));
    Some(AccountedJob {
        number: Some(record.small("JobID")).filter(|number| *number > 0)?,
        user: record.get("UserID").parse().ok()?,
        partition: record.get("Partition").to_owned(),
        qos: record.get("QOS").to_owned(),
        state: match state {
            // It waits again; its attempts before that are in the accounting, if there is one.
            AccountedState::Requeued => AccountedState::Waiting,
            state => state,
        },
        submitted: time(record.get("SubmitTime")),
        eligible: time(record.get("EligibleTime")),
        // Of a job that waits these are expectations, of one that runs its end is.
        start: time(record.get("StartTime")).filter(|_| has_begun),
        end: time(record.get("EndTime")).filter(|_| has_ended),
        limit: limit(record.get("TimeLimit"))?.map(|limit| limit.as_secs()),
        nodes,
        wanted: record.small("NumNodes").max(1),
        cpus: if cpus > 0 {
            cpus
        } else {
            cpus_of(resources).unwrap_or(0)
        },
        memory: memory_of(resources),
        gpus: gpus_of(resources),
        reservation: record.get("Reservation").to_owned(),
        is_array_task: !record.get("ArrayTaskID").is_empty(),
    })
}
