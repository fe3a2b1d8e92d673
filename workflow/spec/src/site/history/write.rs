//! Writing a history: line by line.

use super::{
    FORMAT, HistoryDelivery, HistoryFlow, HistoryItem, HistoryJob, HistoryLine, HistoryRead,
    HistoryTimes, HistoryTotals, MAX_USES,
};
use std::io::{self, Write};
use tarn_types::site::{
    Fate, Job, JobId, JobResult, RecordedWorkload, Submit, WorkItem, WorkJob, Workload,
};

/// Writes a workload that has run, such that `tarn sim --workload` reads it.
///
/// # Errors
/// When it cannot be written, a job names one that stands below it, or names too much.
pub fn write_history(recorded: &RecordedWorkload, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{FORMAT}")?;
    let (work, result) = (&recorded.workload, &recorded.result);
    let mut put = |line: HistoryLine| -> io::Result<()> {
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    };
    for item in &work.items {
        put(HistoryLine::Item(item_of(item)))?;
    }
    for flow in &work.flows {
        put(HistoryLine::Workflow(HistoryFlow { at: flow.arrives }))?;
    }
    for (number, job) in (0u32..).zip(&work.jobs) {
        let line = HistoryJob {
            user: recorded.users.get(number as usize).copied().unwrap_or(0),
            recorded: result.jobs.get(number as usize).and_then(times_of),
            ..job_of(work, JobId(number), job)?
        };
        put(HistoryLine::Job(Box::new(line)))?;
    }
    for (workflow, at) in (0u32..).zip(&result.delivered) {
        if let Some(at) = *at {
            put(HistoryLine::Delivered(HistoryDelivery { workflow, at }))?;
        }
    }
    let bytes = &result.bytes;
    put(HistoryLine::Totals(HistoryTotals {
        end: result.end,
        external_in: bytes.external_in,
        external_out: bytes.external_out,
        peer: bytes.peer,
        retained: bytes.retained,
        joules: result.energy as u64,
    }))
}

fn item_of(item: &WorkItem) -> HistoryItem {
    HistoryItem {
        bytes: item.bytes,
        stated: (item.item.bytes != item.bytes).then_some(item.item.bytes),
        outside: item.item.outside,
        keep: item.item.keep,
    }
}

fn job_of(work: &Workload, id: JobId, job: &WorkJob) -> io::Result<HistoryJob> {
    let Job {
        flow,
        nodes,
        cores,
        memory,
        gpus,
        mode,
        limit,
        expect,
        ref after,
        continues,
        ref reads,
        ref writes,
        // When it was submitted, `at` says.
        submitted: _,
        place,
        ref on,
        not_before,
    } = *job.job;
    if after.len().max(reads.len()).max(writes.len()) > MAX_USES {
        return Err(io::Error::other(format!(
            "job {id} names more than {MAX_USES} jobs or items"
        )));
    }
    let (at, follows) = match job.submit {
        Submit::At(time) => (time, None),
        Submit::After(before) => (0, Some(before)),
    };
    let named = after.iter().copied().chain(continues).chain(follows);
    if let Some(later) = named
        .clone()
        .find(|other| *other >= id || other.at() >= work.jobs.len())
    {
        return Err(io::Error::other(format!(
            "job {id} names job {later}, which does not stand above it"
        )));
    }
    let reads = reads.iter().map(|r| HistoryRead {
        item: r.item.0,
        spread: r.spread,
    });
    Ok(HistoryJob {
        user: 0,
        at,
        nodes,
        cores,
        memory,
        gpus,
        mode,
        compute: job.compute,
        limit,
        expect,
        workflow: flow.map(|f| f.0),
        on: on.clone(),
        not_before,
        place,
        after: after.iter().map(|j| j.0).collect(),
        follows: follows.map(|j| j.0),
        continues: continues.map(|j| j.0),
        reads: reads.collect(),
        writes: writes.iter().map(|i| i.0).collect(),
        recorded: None,
    })
}

fn times_of(result: &JobResult) -> Option<HistoryTimes> {
    (result.fate == Fate::Done).then_some(HistoryTimes {
        submitted: result.submitted,
        ready: result.ready,
        begun: result.begun,
        released: result.released,
        io: result.io,
        node_time: result.node_time,
    })
}
