//! The sources become a history: names become positions.

use super::sources::HistorySources;
use crate::clock::now;
use crate::error::{CliError, CliResult};
use crate::print::message;
use crate::usage::when;
use std::collections::{BTreeMap, HashMap, HashSet};
use tarn_proto::site::{JobDataRecord, MovedBytes, NodeInfo, RecordedUse};
use tarn_slurm::SlurmSnapshot;
use tarn_twin::{
    JobDataHistory, NodeHistory, PastJob, SiteHistory, SiteTwin, StoreHistory, VersionUse, twin,
};
use tarn_types::codes::Exit;
use tarn_types::site::{AccountedJob, BytesByWay, NodePowerModel};
use tarn_types::units::{SECOND, Time};

/// Fewer bytes say nothing of a bandwidth.
const LEAST_MEASURED: u64 = 1 << 20;

/// The twin of this site since then.
pub(super) fn twin_since(since: &str) -> CliResult<SiteTwin> {
    let since = when(since, now()).map_err(|why| CliError::new(Exit::Usage, why))?;
    let found = twin(&history(&HistorySources::read(since)?));
    for note in &found.notes {
        message!("note: {note}");
    }
    if found.recorded.workload.jobs.is_empty() {
        let text = "no job that had nodes has ended since then, as far as Slurm's accounting knows; name an earlier time with --since";
        return Err(CliError::new(Exit::NotFound, text));
    }
    Ok(found)
}

/// Positions of names.
type Positions<'n> = HashMap<&'n str, u32>;

fn history(sources: &HistorySources) -> SiteHistory {
    let names = sources.snapshot.partitions.keys().map(String::as_str);
    let partitions: Positions<'_> = names.zip(0u32..).collect();
    let mut history = SiteHistory::default();
    let positions = add_nodes(&mut history, sources, &partitions);
    for record in &sources.records {
        history.rates_in.extend(rate(&record.read_outside));
        history.rates_out.extend(rate(&record.written_outside));
        history.rates_peer.extend(rate(&record.between_nodes));
    }
    let records = sources.records.iter().map(|record| (record.job, record));
    let records: BTreeMap<u32, &JobDataRecord> = records.collect();
    // A job that was put back into the queue has an attempt for each time it had nodes: its data is that of the last.
    let mut last: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for job in &sources.jobs {
        let known = last.entry(job.number).or_default();
        *known = (*known).max(job.start);
    }
    for job in &sources.jobs {
        let is_last = last.get(&job.number).copied().flatten() == job.start;
        let record = records.get(&job.number).copied().filter(|_| is_last);
        let partition = partitions.get(&*job.partition).copied();
        if let Some(past) = past_job(job, record, &positions, &history.nodes) {
            history.jobs.push(PastJob { partition, ..past });
        }
    }
    history
}

/// Adds the nodes that jobs had or could have. A node that is down, and was all the time, is none.
fn add_nodes<'n>(
    history: &mut SiteHistory,
    sources: &'n HistorySources,
    partitions: &Positions<'_>,
) -> Positions<'n> {
    let begun = sources.jobs.iter().filter(|job| job.start.is_some());
    let used = begun.flat_map(|job| job.nodes.iter().map(String::as_str));
    let used: HashSet<&str> = used.collect();
    let infos = sources.nodes.iter().map(|node| (&*node.name, node));
    let infos: HashMap<&str, &NodeInfo> = infos.collect();
    let power = power_of(&sources.snapshot, &infos);
    let mut positions = Positions::new();
    for node in sources.snapshot.nodes.values() {
        if !node.state.is_usable() && !used.contains(&*node.name) {
            continue;
        }
        positions.insert(&node.name, history.nodes.len() as u32);
        let own = node.partitions.iter();
        let mut own: Vec<u32> = own.filter_map(|p| partitions.get(&**p).copied()).collect();
        own.sort_unstable();
        let info = infos.get(&*node.name);
        history.nodes.push(NodeHistory {
            cores: node.cpus,
            memory: node.memory,
            gpus: gpus(&node.gres),
            partitions: own,
            stores: info.map_or(Vec::new(), |info| stores(info)),
            power,
        });
    }
    positions
}

/// The bandwidth of one node that a job's transfers had.
fn rate(moved: &MovedBytes) -> Option<u64> {
    let rate = u128::from(moved.bytes) * u128::from(SECOND);
    let rate = rate.checked_div(u128::from(moved.time))?;
    let rate = u64::try_from(rate).ok()?;
    (moved.bytes >= LEAST_MEASURED).then_some(rate)
}

/// A job that had nodes and has ended.
fn past_job(
    job: &AccountedJob,
    record: Option<&JobDataRecord>,
    positions: &Positions<'_>,
    known: &[NodeHistory],
) -> Option<PastJob> {
    let (begun, ended) = (job.start?, job.end?);
    let nodes = job.nodes.iter();
    let nodes: Option<Vec<u32>> = nodes.map(|name| positions.get(&**name).copied()).collect();
    let nodes = nodes.filter(|nodes| !nodes.is_empty())?;
    let count = nodes.len() as u64;
    let cores = nodes.iter().filter_map(|n| known.get(*n as usize));
    let all: u64 = cores.map(|node| u64::from(node.cores)).sum();
    let is_whole = job.cpus == 0 || job.cpus >= all;
    let each = |all: u64| u32::try_from(all.div_ceil(count)).unwrap_or(u32::MAX);
    let nanos = |seconds: u64| seconds.saturating_mul(SECOND);
    let submitted = nanos(job.submitted.or(job.eligible).unwrap_or(begun));
    let begun = nanos(begun);
    Some(PastJob {
        number: u64::from(job.number),
        user: job.user,
        submitted,
        eligible: job.eligible.map_or(submitted, nanos),
        begun,
        ended: nanos(ended),
        limit: nanos(job.limit.unwrap_or(0)),
        nodes,
        cores: if is_whole { 0 } else { each(job.cpus) },
        memory: job.memory.map_or(0, |all| all.div_ceil(count)),
        gpus: each(job.gpus),
        partition: None,
        data: record.map(|record| job_data(record, begun, count)),
    })
}

fn job_data(record: &JobDataRecord, begun: Time, nodes: u64) -> JobDataHistory {
    let needed = record.reads.iter().map(|read| {
        let copies = if read.is_whole { nodes } else { 1 };
        read.bytes.saturating_mul(copies)
    });
    let needed = needed.fold(0, u64::saturating_add);
    let (outside, near) = (record.read_outside.bytes, record.between_nodes.bytes);
    let is_sent = record.delivered > 0 && record.writes.iter().any(|written| written.keep);
    JobDataHistory {
        workflow: format!("{}/{}", record.owner, record.workflow),
        taken_in: record.taken_in,
        staged: record.fetched.saturating_sub(begun),
        delivered: is_sent.then_some(record.delivered),
        reads: record.reads.iter().map(version).collect(),
        writes: record.writes.iter().map(version).collect(),
        bytes: BytesByWay {
            external_in: outside,
            external_out: record.written_outside.bytes,
            peer: near,
            retained: needed.saturating_sub(outside.saturating_add(near)),
        },
    }
}

fn version(used: &RecordedUse) -> VersionUse {
    VersionUse {
        version: format!(
            "{}/{}/{}/{}",
            used.owner, used.workflow, used.dataset, used.version
        ),
        bytes: used.bytes,
        is_whole: used.is_whole,
        keep: used.keep,
    }
}

/// The stores of a node: those with names, else the one that it has.
fn stores(info: &NodeInfo) -> Vec<StoreHistory> {
    let named = info.stores.iter().map(|store| StoreHistory {
        capacity: store.capacity,
        is_persistent: store.persistent,
    });
    let named: Vec<StoreHistory> = named.collect();
    if named.is_empty() && info.capacity > 0 {
        return vec![StoreHistory {
            capacity: info.capacity,
            is_persistent: info.persistent,
        }];
    }
    named
}

/// GPUs of a node's generic resources, such as `gpu:a100:2(S:0),nic:1`.
fn gpus(gres: &str) -> u32 {
    let of = |resource: &str| {
        let resource = resource.split('(').next().unwrap_or_default();
        let count = resource.strip_prefix("gpu:")?.rsplit(':').next()?;
        count.parse::<u32>().ok()
    };
    gres.split(',').filter_map(of).fold(0, u32::saturating_add)
}

/// The power that nodes draw now: the median of those that run nothing, and of those that run something.
fn power_of(snapshot: &SlurmSnapshot, infos: &HashMap<&str, &NodeInfo>) -> NodePowerModel {
    let median = |is_busy: bool| {
        let nodes = snapshot.nodes.values();
        let nodes = nodes.filter(|node| (node.cpus_allocated > 0) == is_busy);
        let draws = nodes.filter_map(|node| infos.get(&*node.name)?.draw.power);
        let mut draws: Vec<u64> = draws.map(|power| power.milliwatts).collect();
        draws.sort_unstable();
        draws.get(draws.len() / 2).map(|draw| *draw as f64 / 1000.0)
    };
    let (idle, busy) = (median(false), median(true));
    let idle = idle.or(busy).unwrap_or(0.0);
    NodePowerModel {
        idle,
        busy: busy.unwrap_or(idle).max(idle),
        ..NodePowerModel::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted() {
        for (gres, count) in [
            ("", 0),
            ("gpu:2", 2),
            ("gpu:a100:4(S:0-1),nic:1", 4),
            ("gpu:a:1,gpu:b:2", 3),
            ("gpu:x", 0),
            ("scm:12G", 0),
        ] {
            assert_eq!(gpus(gres), count, "{gres}");
        }
    }

    #[test]
    fn small_transfers_are_no_bandwidth() {
        let moved = |bytes, time| rate(&MovedBytes { bytes, time });
        assert_eq!(moved(4 << 20, 2 * SECOND), Some(2 << 20));
        assert_eq!((moved(1, 1), moved(4 << 20, 0)), (None, None));
    }
}
