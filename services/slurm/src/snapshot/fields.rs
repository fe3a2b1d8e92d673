//! Jobs and nodes from columns of fixed width (`squeue -O name:width,...`, `sinfo -N -O`).
//!
//! Slurm cuts each value at its width and fills it up to that with spaces, in bytes, so all records of one command have
//! the same length. They are taken apart by that length alone, not at newlines: a text of a user that contains a newline,
//! `|` or something like a field stays in its column. Free texts (names, comments) are not asked for.

use super::hostlist::NodeLists;
use super::reasons::PendingReason;
use super::states::{SlurmJobState, SlurmNodeState};
use super::values::{MIB, limit, memory_of, number, parts, text, time};
use super::{Answers, ArrayTasks, HetComponent, SlurmJob, SlurmNode, unreadable};
use crate::SlurmError;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// A column: its name for `-O`, its width in bytes, and whether it can be asked for again with [`WIDE`] bytes.
pub(crate) type Column = (&'static str, usize, bool);

/// The width of a list of a job that did not fit.
const WIDE: usize = 16 << 10;

/// The columns of jobs. The last is one byte of a text of the user: whether there is one.
pub(super) const JOB_COLUMNS: [Column; 35] = [
    ("JobID", 12, false),
    ("ArrayJobID", 12, false),
    ("ArrayTaskID", 96, true),
    ("HetJobID", 12, false),
    ("HetJobOffset", 12, false),
    ("UserID", 12, false),
    ("UserName", 40, true),
    ("Partition", 96, true),
    ("QOS", 40, true),
    ("Account", 40, true),
    ("State", 16, false),
    ("Reason", 96, true),
    ("PriorityLong", 12, false),
    ("Nice", 12, false),
    ("SubmitTime", 20, false),
    ("EligibleTime", 20, false),
    ("StartTime", 20, false),
    ("EndTime", 20, false),
    ("TimeLimit", 20, false),
    ("NumNodes", 12, false),
    ("MaxNodes", 12, false),
    ("NumCPUs", 12, false),
    ("tres-alloc", 160, true),
    ("tres-per-node", 96, true),
    ("OverSubscribe", 8, false),
    ("Feature", 96, true),
    ("Prefer", 160, true),
    ("ReqNodes", 160, true),
    ("NodeList", 160, true),
    ("SchedNodes", 160, true),
    ("Reservation", 64, true),
    ("Licenses", 96, true),
    ("Dependency", 160, true),
    ("admin_comment", 128, true),
    ("BurstBuffer", 1, false),
];

/// The columns of excluded nodes, which `-O` of 22.05 lacks: for `-o`.
pub(super) const EXCLUDED_COLUMNS: [Column; 2] = [("A", 12, false), ("x", 160, true)];

/// The columns of nodes: a record for each partition of each.
pub(super) const NODE_COLUMNS: [Column; 11] = [
    ("NodeList", 64, false),
    ("PartitionName", 64, false),
    ("StateComplete", 128, false),
    ("CPUsState", 48, false),
    ("Memory", 20, false),
    ("AllocMem", 20, false),
    ("Gres", 128, false),
    ("Features", 192, false),
    ("features_act", 192, false),
    ("Reason", 96, false),
    ("Extra", 128, false),
];

/// Bytes of a column.
pub(super) fn column_width(column: &Column, is_wide: bool) -> usize {
    match column {
        (_, _, true) if is_wide => WIDE,
        (_, width, _) => *width,
    }
}

pub(crate) fn format_of(columns: &[Column], is_wide: bool) -> String {
    let columns = columns.iter();
    let columns = columns.map(|column| format!("{}:{}", column.0, column_width(column, is_wide)));
    columns.collect::<Vec<_>>().join(",")
}

/// The words of `squeue -O` for jobs.
pub(super) fn job_format(is_wide: bool) -> String {
    format_of(&JOB_COLUMNS, is_wide)
}

/// The words of `squeue -o` for excluded nodes.
pub(super) fn excluded_format(is_wide: bool) -> String {
    let columns = EXCLUDED_COLUMNS.iter();
    let columns = columns.map(|column| format!("%{}{}", column_width(column, is_wide), column.0));
    columns.collect()
}

/// The words of `sinfo -N -O` for nodes.
pub(super) fn node_format() -> String {
    format_of(&NODE_COLUMNS, false)
}

/// One record: the values of its columns.
pub(crate) struct ColumnRecord<'b> {
    columns: &'static [Column],
    values: Vec<Cow<'b, str>>,
    /// Whether a value fills its column: more of it may be missing.
    pub(crate) is_full: bool,
}

impl ColumnRecord<'_> {
    /// The value of a column, empty where Slurm has none.
    pub(crate) fn get(&self, name: &str) -> &str {
        let at = self.columns.iter().position(|column| column.0 == name);
        let value = at.and_then(|at| self.values.get(at));
        value.map(|value| text(value)).unwrap_or_default()
    }

    pub(crate) fn small(&self, name: &str) -> u32 {
        let number = number(self.get(name)).unwrap_or(0);
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}

/// Takes an output apart into its records.
pub(crate) fn records<'b>(
    command: &str,
    bytes: &'b [u8],
    columns: &'static [Column],
    is_wide: bool,
) -> Result<Vec<ColumnRecord<'b>>, SlurmError> {
    let length: usize = columns.iter().map(|c| column_width(c, is_wide)).sum();
    let mut records = Vec::new();
    for record in bytes.chunks(length + 1) {
        let Some((b'\n', mut rest)) = record.split_last() else {
            let what = format!("a record that is not {length} bytes long");
            return Err(unreadable(command, &what));
        };
        if rest.len() != length {
            return Err(unreadable(command, "half a record at its end"));
        }
        let (mut values, mut is_full) = (Vec::with_capacity(columns.len()), false);
        for column in columns {
            let (value, behind) = rest.split_at(column_width(column, is_wide));
            is_full |= column.1 > 1 && value.last() != Some(&b' ');
            values.push(String::from_utf8_lossy(value));
            rest = behind;
        }
        records.push(ColumnRecord {
            columns,
            values,
            is_full,
        });
    }
    Ok(records)
}

/// Records of jobs by number, and those of which a value may be cut.
fn by_job<'b>(
    bytes: &'b [u8],
    columns: &'static [Column],
    is_wide: bool,
) -> Result<BTreeMap<u32, ColumnRecord<'b>>, SlurmError> {
    let key = columns.first().map(|column| column.0).unwrap_or_default();
    let mut jobs = BTreeMap::new();
    for record in records("squeue", bytes, columns, is_wide)? {
        match record.small(key) {
            0 => return Err(unreadable("squeue", "a record without a job's number")),
            job => jobs.insert(job, record),
        };
    }
    Ok(jobs)
}

/// The jobs that are to be asked for again, as a value of theirs may be cut.
pub(super) fn cut_jobs(answers: &Answers) -> Result<BTreeSet<u32>, SlurmError> {
    let jobs = by_job(&answers.jobs, &JOB_COLUMNS, false)?;
    let excluded = by_job(&answers.excluded, &EXCLUDED_COLUMNS, false)?;
    let all = jobs.iter().chain(&excluded);
    let cut = all.filter(|(_, record)| record.is_full);
    Ok(cut.map(|(job, _)| *job).collect())
}

/// The jobs that have not ended; what was not read of them is as in `earlier`.
pub(super) fn jobs(
    answers: &Answers,
    lists: &mut NodeLists,
    earlier: &BTreeMap<u32, SlurmJob>,
) -> Result<BTreeMap<u32, SlurmJob>, SlurmError> {
    let mut records = by_job(&answers.jobs, &JOB_COLUMNS, false)?;
    for (job, wide) in by_job(&answers.wide_jobs, &JOB_COLUMNS, true)? {
        // One that began to exist meanwhile is part of the next snapshot.
        records.entry(job).and_modify(|record| *record = wide);
    }
    let mut excluded = by_job(&answers.excluded, &EXCLUDED_COLUMNS, false)?;
    excluded.extend(by_job(&answers.wide_excluded, &EXCLUDED_COLUMNS, true)?);
    let mut jobs = BTreeMap::new();
    for (number, record) in &records {
        let state = SlurmJobState::parse(record.get("State"));
        if !state.has_ended() {
            let mut job = to_job(*number, state, record, excluded.get(number), lists);
            if let Some(earlier) = earlier.get(number).filter(|_| job.lacks_exclusions) {
                job.excluded.clone_from(&earlier.excluded);
                job.lacks_exclusions = earlier.lacks_exclusions;
            }
            jobs.insert(*number, job);
        }
    }
    Ok(jobs)
}

/// The array and the heterogeneous job that a job is of.
fn groups(record: &ColumnRecord<'_>) -> (Option<ArrayTasks>, Option<HetComponent>) {
    let tasks = record.get("ArrayTaskID").to_owned();
    let array = (!tasks.is_empty()).then(|| ArrayTasks {
        job: record.small("ArrayJobID"),
        tasks,
    });
    let het = (record.small("HetJobID") > 0).then(|| HetComponent {
        leader: record.small("HetJobID"),
        offset: record.small("HetJobOffset"),
    });
    (array, het)
}

fn to_job(
    number: u32,
    state: SlurmJobState,
    record: &ColumnRecord<'_>,
    excluded: Option<&ColumnRecord<'_>>,
    lists: &mut NodeLists,
) -> SlurmJob {
    let get = |name| record.get(name).to_owned();
    // A list that is cut or that is none makes this job incomplete: it stays in the snapshot, and others are read.
    let mut is_incomplete = record.is_full || excluded.is_some_and(|record| record.is_full);
    let mut nodes = |record: &ColumnRecord<'_>, name| {
        lists.names(record.get(name)).unwrap_or_else(|_| {
            is_incomplete = true;
            [].into()
        })
    };
    let required = nodes(record, "ReqNodes");
    let has = nodes(record, "NodeList");
    let planned = nodes(record, "SchedNodes");
    let excludes = excluded.map_or_else(|| [].into(), |excluded| nodes(excluded, "x"));
    let (array, het) = groups(record);
    let limit = limit(record.get("TimeLimit"))
        .flatten()
        .map(|l| l.as_secs());
    let reason = PendingReason::parse(record.get("Reason"));
    let is_text = record.get("Reason").contains([' ', ':']);
    let least = record.small("NumNodes");
    SlurmJob {
        number,
        array,
        het,
        user: record.small("UserID"),
        user_name: get("UserName"),
        partitions: parts(record.get("Partition")),
        qos: get("QOS"),
        account: get("Account"),
        state,
        reason,
        description: if is_text {
            get("Reason")
        } else {
            String::new()
        },
        priority: record.small("PriorityLong"),
        nice: record.get("Nice").parse().unwrap_or(0),
        submitted: time(record.get("SubmitTime")),
        eligible: time(record.get("EligibleTime")),
        start: time(record.get("StartTime")),
        end: time(record.get("EndTime")).filter(|_| limit.is_some()),
        limit,
        min_nodes: least,
        max_nodes: record.small("MaxNodes").max(least),
        cpus: record.small("NumCPUs"),
        memory: memory_of(record.get("tres-alloc")),
        tres_per_node: get("tres-per-node"),
        is_exclusive: record.get("OverSubscribe") == "NO",
        features: get("Feature"),
        preferred: get("Prefer"),
        excluded: excludes,
        required,
        nodes: has,
        planned,
        reservation: get("Reservation"),
        licences: get("Licenses"),
        dependency: get("Dependency"),
        has_burst_buffer: record.values.last().is_some_and(|byte| *byte != " "),
        admin_comment: get("admin_comment"),
        is_incomplete,
        lacks_exclusions: excluded.is_none(),
    }
}

/// The nodes that are in a partition.
pub(super) fn nodes(answers: &Answers) -> Result<BTreeMap<String, SlurmNode>, SlurmError> {
    let mut nodes: BTreeMap<String, SlurmNode> = BTreeMap::new();
    for record in records("sinfo", &answers.nodes, &NODE_COLUMNS, false)? {
        let name = record.get("NodeList").to_owned();
        let partition = record.get("PartitionName").to_owned();
        if name.is_empty() || name.len() >= NODE_COLUMNS[0].1 {
            return Err(unreadable(
                "sinfo",
                "a node without a name, or with too long a one",
            ));
        }
        // Allocated, idle, other, total.
        let cpus: Vec<u32> = record
            .get("CPUsState")
            .split('/')
            .map(|n| n.parse().unwrap_or(0))
            .collect();
        let cpus = |at: usize| cpus.get(at).copied().unwrap_or(0);
        let bytes = |name| number(record.get(name)).unwrap_or(0).saturating_mul(MIB);
        let reason = record.get("Reason");
        let node = nodes.entry(name.clone()).or_insert_with(|| SlurmNode {
            name,
            state: SlurmNodeState::parse(record.get("StateComplete")),
            cpus: cpus(3),
            cpus_allocated: cpus(0),
            memory: bytes("Memory"),
            memory_allocated: bytes("AllocMem"),
            gres: record.get("Gres").to_owned(),
            features: parts(record.get("Features")),
            active_features: parts(record.get("features_act")),
            partitions: BTreeSet::new(),
            reason: if reason == "none" { "" } else { reason }.to_owned(),
            extra: record.get("Extra").to_owned(),
            is_incomplete: record.is_full,
        });
        if !partition.is_empty() {
            node.partitions.insert(partition);
        }
    }
    Ok(nodes)
}
