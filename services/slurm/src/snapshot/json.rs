//! Jobs and nodes from Slurm's JSON: `squeue --json`, `sinfo --json` (22.05), `scontrol show nodes --json` (24.11).
//!
//! A value is a number, or `{"set", "infinite", "number"}` (from 23.02 on); a list of words is a text with commas or a
//! list. Both are read in each place. What is not asked for here is skipped while it is parsed.

use super::hostlist::NodeLists;
use super::reasons::PendingReason;
use super::states::{SlurmJobState, SlurmNodeState};
use super::values::{MIB, known, memory_of, text};
use super::{Answers, ArrayTasks, HetComponent, SlurmJob, SlurmNode, unreadable};
use crate::SlurmError;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// A whole number, if it is set and has an end.
#[derive(Debug, Default, Clone, Copy)]
struct JsonNumber(Option<i64>);

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let is = |key: &str| value.get(key).and_then(Value::as_bool);
        let number = match &value {
            Value::Object(_) if is("set") == Some(false) || is("infinite") == Some(true) => None,
            Value::Object(object) => object.get("number").and_then(Value::as_i64),
            value => value.as_i64(),
        };
        Ok(Self(number))
    }
}

impl JsonNumber {
    /// As a number from 0 on that is none of Slurm's for "none".
    fn known(self) -> Option<u64> {
        self.0.and_then(|n| u64::try_from(n).ok()).and_then(known)
    }

    /// As a number above 0.
    fn positive(self) -> Option<u64> {
        self.known().filter(|n| *n > 0)
    }

    /// As a number of 32 bits, 0 where there is none.
    fn small(self) -> u32 {
        let number = self.known().unwrap_or(0);
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}

/// A text; a list of words is joined by commas.
#[derive(Debug, Default, Clone)]
struct JsonText(String);

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(from)? {
            Value::String(text) => text,
            Value::Array(words) => {
                let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                words.join(",")
            }
            _ => String::new(),
        }))
    }
}

impl JsonText {
    fn get(&self) -> String {
        text(&self.0).to_owned()
    }

    fn words(&self) -> Vec<String> {
        super::values::parts(&self.0)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JsonJob {
    account: JsonText,
    admin_comment: JsonText,
    array_job_id: JsonNumber,
    array_task_id: JsonNumber,
    array_task_string: JsonText,
    burst_buffer: JsonText,
    cpus: JsonNumber,
    dependency: JsonText,
    eligible_time: JsonNumber,
    end_time: JsonNumber,
    excluded_nodes: JsonText,
    features: JsonText,
    het_job_id: JsonNumber,
    het_job_offset: JsonNumber,
    job_id: JsonNumber,
    job_state: JsonText,
    licenses: JsonText,
    max_nodes: JsonNumber,
    nice: JsonNumber,
    node_count: JsonNumber,
    nodes: JsonText,
    partition: JsonText,
    prefer: JsonText,
    priority: JsonNumber,
    qos: JsonText,
    required_nodes: JsonText,
    resv_name: JsonText,
    scheduled_nodes: JsonText,
    shared: JsonText,
    start_time: JsonNumber,
    state_description: JsonText,
    state_reason: JsonText,
    submit_time: JsonNumber,
    time_limit: JsonNumber,
    tres_alloc_str: JsonText,
    tres_per_node: JsonText,
    tres_req_str: JsonText,
    user_id: JsonNumber,
    user_name: JsonText,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JsonNode {
    active_features: JsonText,
    alloc_cpus: JsonNumber,
    alloc_memory: JsonNumber,
    cpus: JsonNumber,
    extra: JsonText,
    features: JsonText,
    gres: JsonText,
    name: JsonText,
    partitions: JsonText,
    real_memory: JsonNumber,
    reason: JsonText,
    state: JsonText,
    state_flags: JsonText,
}

#[derive(Deserialize)]
struct JsonJobs {
    jobs: Vec<JsonJob>,
}

#[derive(Deserialize)]
struct JsonNodes {
    nodes: Vec<JsonNode>,
}

/// The jobs that have not ended.
pub(super) fn jobs(
    answers: &Answers,
    lists: &mut NodeLists,
) -> Result<BTreeMap<u32, SlurmJob>, SlurmError> {
    // Texts of users may be no UTF-8.
    let json = String::from_utf8_lossy(&answers.jobs);
    let read: JsonJobs =
        serde_json::from_str(&json).map_err(|e| unreadable("squeue --json", &e.to_string()))?;
    let mut jobs = BTreeMap::new();
    for json in &read.jobs {
        let Some(job) = json.job_id.positive().and_then(|n| u32::try_from(n).ok()) else {
            return Err(unreadable("squeue --json", "a job without a number"));
        };
        let state = SlurmJobState::parse(&json.job_state.0);
        if !state.has_ended() {
            jobs.insert(job, to_job(job, state, json, lists));
        }
    }
    Ok(jobs)
}

fn to_job(number: u32, state: SlurmJobState, json: &JsonJob, lists: &mut NodeLists) -> SlurmJob {
    // A list that is none makes this job incomplete: it stays in the snapshot, and others are read.
    let mut is_incomplete = false;
    let mut nodes = |list: &JsonText| {
        lists.names(&list.0).unwrap_or_else(|_| {
            is_incomplete = true;
            [].into()
        })
    };
    let excluded = nodes(&json.excluded_nodes);
    let required = nodes(&json.required_nodes);
    let has = nodes(&json.nodes);
    let planned = nodes(&json.scheduled_nodes);
    let task = json.array_task_id.known().map(|task| task.to_string());
    let tasks = Some(json.array_task_string.get()).filter(|tasks| !tasks.is_empty());
    let array = tasks.or(task).map(|tasks| ArrayTasks {
        job: json.array_job_id.small(),
        tasks,
    });
    let het = json.het_job_id.positive().map(|_| HetComponent {
        leader: json.het_job_id.small(),
        offset: json.het_job_offset.small(),
    });
    let limit = json
        .time_limit
        .known()
        .map(|minutes| minutes.saturating_mul(60));
    let resources = [&json.tres_alloc_str, &json.tres_req_str];
    let resources = resources.into_iter().find(|text| !text.0.is_empty());
    let description = json.state_description.get();
    let least = json.node_count.small();
    SlurmJob {
        number,
        array,
        het,
        user: json.user_id.small(),
        user_name: json.user_name.get(),
        partitions: json.partition.words(),
        qos: json.qos.get(),
        account: json.account.get(),
        state,
        reason: reason(&json.state_reason.0, &description),
        description,
        priority: json.priority.small(),
        nice: json.nice.0.unwrap_or(0),
        submitted: json.submit_time.positive(),
        eligible: json.eligible_time.positive(),
        start: json.start_time.positive(),
        end: json.end_time.positive().filter(|_| limit.is_some()),
        limit,
        min_nodes: least,
        max_nodes: json.max_nodes.small().max(least),
        cpus: json.cpus.small(),
        memory: resources.and_then(|text| memory_of(&text.0)),
        tres_per_node: json.tres_per_node.get(),
        is_exclusive: json.shared.0.split(',').any(|word| word == "none"),
        features: json.features.get(),
        preferred: json.prefer.get(),
        excluded,
        required,
        nodes: has,
        planned,
        reservation: json.resv_name.get(),
        licences: json.licenses.get(),
        dependency: json.dependency.get(),
        has_burst_buffer: !json.burst_buffer.0.is_empty(),
        admin_comment: json.admin_comment.get(),
        is_incomplete,
        lacks_exclusions: false,
    }
}

/// A text that names a reason says more than its code: `ReqNodeNotAvail, May be reserved for other job`.
fn reason(code: &str, description: &str) -> PendingReason {
    match PendingReason::parse(description) {
        PendingReason::None | PendingReason::Other(_) => PendingReason::parse(code),
        reason => reason,
    }
}

/// The nodes.
pub(super) fn nodes(answers: &Answers) -> Result<BTreeMap<String, SlurmNode>, SlurmError> {
    const COMMAND: &str = "sinfo --json, or scontrol show nodes --json";
    let json = String::from_utf8_lossy(&answers.nodes);
    let read: JsonNodes =
        serde_json::from_str(&json).map_err(|e| unreadable(COMMAND, &e.to_string()))?;
    let mut nodes = BTreeMap::new();
    for json in &read.nodes {
        let name = json.name.get();
        if name.is_empty() {
            return Err(unreadable(COMMAND, "a node without a name"));
        }
        // 22.05 has the flags apart; later releases have all words in one list.
        let state = format!("{},{}", json.state.0, json.state_flags.0);
        let node = SlurmNode {
            name: name.clone(),
            state: SlurmNodeState::parse(&state),
            cpus: json.cpus.small(),
            cpus_allocated: json.alloc_cpus.small(),
            memory: json.real_memory.known().unwrap_or(0).saturating_mul(MIB),
            memory_allocated: json.alloc_memory.known().unwrap_or(0).saturating_mul(MIB),
            gres: json.gres.get(),
            features: json.features.words(),
            active_features: json.active_features.words(),
            partitions: json.partitions.words().into_iter().collect(),
            reason: json.reason.get(),
            extra: json.extra.get(),
            is_incomplete: false,
        };
        nodes.insert(name, node);
    }
    Ok(nodes)
}
