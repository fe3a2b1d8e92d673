//! Reading a history: line by line, so its length is no bound on memory but by what it says.

use super::{
    FORMAT, FORMAT_NAME, HistoryItem, HistoryJob, HistoryLine, HistoryTimes, HistoryTotals,
    MAX_LINE, MAX_MASKS, MAX_USES,
};
use crate::diag::{Finding, FindingCode};
use crate::site::draft::{DraftJob, LEAST_LIMIT, MAX_TIME};
use crate::site::gather::Gather;
use std::io::{self, BufRead, Read};
use std::sync::Arc;
use tarn_types::bounds;
use tarn_types::site::{
    BytesByWay, Fate, FlowId, Input, Item, ItemId, Job, JobId, JobResult, NodeMask, SiteResult,
    WorkItem,
};
use tarn_types::units::Time;

/// Adds a history to a workload; its time 0 is `arrives`. Returns what happened.
///
/// # Errors
/// The first wrong line, or that the file cannot be read.
pub(crate) fn read_history(
    gather: &mut Gather,
    lines: &mut dyn BufRead,
    arrives: Time,
) -> Result<SiteResult, Finding> {
    let mut line = Vec::new();
    next_line(lines, &mut line, 1)?;
    if line.trim_ascii() != FORMAT.as_bytes() {
        let found = String::from_utf8_lossy(line.trim_ascii_end());
        let message = format!("this history has another version: {}", found.escape_debug());
        return Err(Finding::error(FindingCode::Syntax, message).help(format!(
            "its first line must be `{FORMAT}`; read a newer one with a newer tarn"
        )));
    }
    let mut reader = HistoryReader {
        first: gather.first(),
        gather,
        arrives,
        flows: Vec::new(),
        items: Vec::new(),
        masks: Vec::new(),
        result: SiteResult::default(),
    };
    let mut number = 1;
    loop {
        number += 1;
        if !next_line(lines, &mut line, number)? {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let parsed = serde_json::from_slice(&line).map_err(|e| wrong(number, &e.to_string()))?;
        reader.add(parsed).map_err(|why| match why {
            HistoryLineError::Is(why) => wrong(number, &why),
            HistoryLineError::Bound(finding) => finding,
        })?;
    }
    reader.finish()
}

/// Why a line cannot be used.
enum HistoryLineError {
    Is(String),
    /// The workload has become too large.
    Bound(Finding),
}

fn wrong(number: u64, why: &str) -> Finding {
    Finding::error(
        FindingCode::BadValue,
        format!("line {number} of the history: {why}"),
    )
    .help("export it again with `tarn slurm export`: tarn writes no such line")
}

/// Reads a line; `false` at the end.
fn next_line(lines: &mut dyn BufRead, line: &mut Vec<u8>, number: u64) -> Result<bool, Finding> {
    line.clear();
    let read = lines.take(MAX_LINE).read_until(b'\n', line);
    let read = read.map_err(|e: io::Error| {
        let message = format!("the history cannot be read beyond line {number}: {e}");
        Finding::error(FindingCode::Syntax, message)
            .help("copy the file again: it is damaged or cut off")
    })?;
    if read as u64 == MAX_LINE && !line.ends_with(b"\n") {
        return Err(wrong(
            number,
            &format!("it is longer than {MAX_LINE} bytes"),
        ));
    }
    Ok(read > 0)
}

struct HistoryReader<'g> {
    gather: &'g mut Gather,
    /// The numbers in the workload of the history's first job and item.
    first: (u32, u32),
    arrives: Time,
    flows: Vec<FlowId>,
    /// Of each item: whether it may be read by jobs below, and whether it may be written.
    items: Vec<HistoryItemUse>,
    /// The sets of nodes that jobs are bound to: jobs share them.
    masks: Vec<Arc<NodeMask>>,
    result: SiteResult,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HistoryItemUse {
    Outside,
    Unmade,
    Made,
}

impl HistoryReader<'_> {
    fn add(&mut self, line: HistoryLine) -> Result<(), HistoryLineError> {
        match line {
            HistoryLine::Item(item) => self.item(&item),
            HistoryLine::Workflow(flow) => {
                self.gather
                    .check_workload_size(1, 0)
                    .map_err(HistoryLineError::Bound)?;
                let at = self.time(flow.at)?;
                let name = format!("workflow-{}", self.flows.len());
                self.flows.push(self.gather.begin_flow(&name, at));
                self.result.delivered.push(None);
                Ok(())
            }
            HistoryLine::Job(job) => self.job(*job),
            HistoryLine::Delivered(delivery) => {
                let at = self.time(delivery.at)?;
                let flow = self.result.delivered.get_mut(delivery.workflow as usize);
                let flow = flow.ok_or_else(|| no_such("workflow", delivery.workflow))?;
                *flow = Some(at);
                Ok(())
            }
            HistoryLine::Totals(totals) => self.totals(&totals),
        }
    }

    fn time(&self, at: Time) -> Result<Time, HistoryLineError> {
        let time = self.arrives.saturating_add(at);
        if at > MAX_TIME || time > MAX_TIME {
            return Err(HistoryLineError::Is(format!("the time {at} is too large")));
        }
        Ok(time)
    }

    fn item(&mut self, item: &HistoryItem) -> Result<(), HistoryLineError> {
        self.gather
            .check_workload_size(0, 1)
            .map_err(HistoryLineError::Bound)?;
        self.items.push(if item.outside {
            HistoryItemUse::Outside
        } else {
            HistoryItemUse::Unmade
        });
        self.gather.items(&[WorkItem {
            item: Item {
                bytes: item.stated.unwrap_or(item.bytes),
                outside: item.outside,
                keep: item.keep && !item.outside,
            },
            name: "".into(),
            bytes: item.bytes,
        }]);
        Ok(())
    }

    fn job(&mut self, job: HistoryJob) -> Result<(), HistoryLineError> {
        self.gather
            .check_workload_size(1, 0)
            .map_err(HistoryLineError::Bound)?;
        let at = self.time(job.at)?;
        let flow = match job.workflow {
            Some(number) => {
                let flow = self.flows.get(number as usize).copied();
                Some(flow.ok_or_else(|| no_such("workflow", number))?)
            }
            None => None,
        };
        let draft = self.draft(&job)?;
        let times = match job.recorded {
            Some(times) => self.result_of(&times)?,
            None => JobResult::default(),
        };
        self.result.jobs.push(times);
        self.gather.push(&draft, flow, self.first, at);
        Ok(())
    }

    /// The job with its own numbers, which count from the history's first job and item.
    fn draft(&mut self, job: &HistoryJob) -> Result<DraftJob, HistoryLineError> {
        let wrong = |why: &str| Err(HistoryLineError::Is(why.to_owned()));
        if job.nodes == 0 || job.nodes as usize > bounds::MAX_NODES {
            return wrong("it has no nodes, or more than tarn takes");
        }
        let uses = job.after.len().max(job.reads.len()).max(job.writes.len());
        if uses > MAX_USES {
            return Err(HistoryLineError::Is(format!(
                "it names more than {MAX_USES} jobs or items"
            )));
        }
        if job.limit.max(job.compute) > MAX_TIME || job.limit == 0 || job.expect > job.limit {
            return wrong("its limit is 0, a time is too large, or `expect` is above the limit");
        }
        let before = self.result.jobs.len() as u32;
        let named = job.after.iter().chain(&job.follows).chain(&job.continues);
        if let Some(other) = named.copied().find(|other| *other >= before) {
            return Err(no_such("job", other));
        }
        for read in &job.reads {
            match self.items.get(read.item as usize) {
                Some(HistoryItemUse::Outside | HistoryItemUse::Made) => {}
                Some(HistoryItemUse::Unmade) => {
                    return wrong("it reads an item that no job above it makes");
                }
                None => return Err(no_such("item", read.item)),
            }
        }
        for item in &job.writes {
            match self.items.get_mut(*item as usize) {
                Some(made @ HistoryItemUse::Unmade) => *made = HistoryItemUse::Made,
                Some(_) => return wrong("it makes an item that is there already"),
                None => return Err(no_such("item", *item)),
            }
        }
        let reads = job.reads.iter().map(|read| Input {
            item: ItemId(read.item),
            spread: read.spread,
        });
        Ok(DraftJob {
            name: "".into(),
            job: Job {
                flow: None,
                nodes: job.nodes,
                cores: job.cores,
                memory: job.memory,
                gpus: job.gpus,
                mode: job.mode,
                limit: job.limit.max(LEAST_LIMIT),
                expect: job.expect,
                after: job.after.iter().copied().map(JobId).collect(),
                continues: job.continues.map(JobId),
                submitted: None,
                place: job.place,
                on: self.mask(job.on.as_deref())?,
                not_before: match job.not_before {
                    0 => 0,
                    at => self.time(at)?,
                },
                reads: reads.collect(),
                writes: job.writes.iter().copied().map(ItemId).collect(),
            },
            compute: job.compute,
            follows: job.follows.map(JobId),
        })
    }

    fn mask(&mut self, mask: Option<&NodeMask>) -> Result<Option<Arc<NodeMask>>, HistoryLineError> {
        let Some(mask) = mask else {
            return Ok(None);
        };
        if let Some(known) = self.masks.iter().find(|known| ***known == *mask) {
            return Ok(Some(known.clone()));
        }
        if self.masks.len() >= MAX_MASKS {
            let why =
                format!("there are more than {MAX_MASKS} sets of nodes that jobs are bound to");
            return Err(HistoryLineError::Is(why));
        }
        let mask = Arc::new(mask.clone());
        self.masks.push(mask.clone());
        Ok(Some(mask))
    }

    fn result_of(&self, times: &HistoryTimes) -> Result<JobResult, HistoryLineError> {
        let (begun, released) = (self.time(times.begun)?, self.time(times.released)?);
        if released < begun {
            return Err(HistoryLineError::Is(
                "it was released before it had begun".into(),
            ));
        }
        Ok(JobResult {
            submitted: self.time(times.submitted)?,
            ready: self.time(times.ready)?,
            begun,
            released,
            held: released - begun,
            io: times.io,
            node_time: times.node_time,
            attempts: 1,
            fate: Fate::Done,
        })
    }

    fn totals(&mut self, totals: &HistoryTotals) -> Result<(), HistoryLineError> {
        self.result.end = self.time(totals.end)?;
        self.result.energy = totals.joules as f64;
        self.result.bytes = BytesByWay {
            external_in: totals.external_in,
            external_out: totals.external_out,
            peer: totals.peer,
            retained: totals.retained,
        };
        Ok(())
    }

    fn finish(self) -> Result<SiteResult, Finding> {
        if self.result.jobs.is_empty() {
            return Err(
                Finding::error(FindingCode::BadValue, "the history has no job").help(
                    "export a time in which jobs ended: `tarn slurm export --since 7d FOLDER`",
                ),
            );
        }
        Ok(self.result)
    }
}

fn no_such(noun: &str, number: u32) -> HistoryLineError {
    HistoryLineError::Is(format!("there is no {noun} {number} above it"))
}

/// Whether a text begins as a history of any version does.
pub(crate) fn is_history(head: &[u8]) -> bool {
    head.starts_with(FORMAT_NAME.as_bytes())
}
