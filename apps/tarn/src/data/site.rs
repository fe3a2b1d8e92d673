//! `tarn data` of a site's datasets, as the controller knows them. docs/guide/on-a-site.md, "Data that outlives jobs".

use crate::clock::now;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, message, out};
use crate::slurm::people::{OwnerNames, number};
use crate::slurm::{ControllerClient, TIMEOUT, done, refused, unexpected};
use anyhow::Context;
use std::time::Duration;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, DatasetFilter, DatasetInfo, OrphanInfo, Owner, ReplicaInfo,
    ReplicaState,
};
use tarn_types::codes::Exit;
use tarn_types::named::{NamedDataset, Whose};
use tarn_types::units::{Bytes, Elapsed, Time, parse_time};

/// How long nodes may take to read a dataset again.
const READING: Duration = Duration::from_secs(86_400);

/// A dataset, as the controller names it.
struct SiteDataset {
    owner: Owner,
    workflow: String,
    dataset: String,
}

impl SiteDataset {
    fn of(named: &NamedDataset) -> CliResult<Self> {
        let workflow = named.workflow.as_deref().unwrap_or(Owner::NO_WORKFLOW);
        Ok(Self {
            owner: number(&named.whose)?,
            workflow: workflow.to_owned(),
            dataset: named.dataset.clone(),
        })
    }
}

/// Whether a dataset is named in full, as those of a site are.
pub(super) fn is_named(name: &str) -> bool {
    name.contains('/')
}

/// Whether there is a site on this host.
pub(super) fn is_here() -> bool {
    ControllerClient::of_environment().is_here()
}

/// Whether there is a site whose datasets can be meant.
pub(super) fn is_known() -> bool {
    ControllerClient::of_environment().is_known()
}

pub(super) fn named(name: &str) -> CliResult<NamedDataset> {
    name.parse().exit(Exit::Usage)
}

fn ask(ask: &ControllerRequest) -> CliResult<ControllerReply> {
    ControllerClient::of_environment().ask_once(ask, TIMEOUT)
}

fn datasets(which: DatasetFilter) -> CliResult<Vec<DatasetInfo>> {
    match ask(&ControllerRequest::Find(which))? {
        ControllerReply::Datasets(all) => Ok(all),
        ControllerReply::Refused(why) => Err(refused(&why)),
        other => Err(unexpected(&other)),
    }
}

/// How long a version stays.
fn stays(info: &DatasetInfo, now: Time) -> String {
    if info.failed.is_some() {
        return "failed".into();
    }
    if let Some(job) = info.awaits {
        return format!("job {job} makes it");
    }
    match info.until {
        None => "forever".into(),
        Some(until) if until <= now => "while used".into(),
        Some(until) => {
            let left = Elapsed(until - now);
            let soon = if info.ends_soon { ", ends soon" } else { "" };
            format!("{left}{soon}")
        }
    }
}

/// The nodes that it is stored on; of those whose stores have names, with these, fast to slow: `n1:pmem+nvme`.
fn places(info: &DatasetInfo, between: &str) -> String {
    let place = |node: &String| match info.stores.get(node) {
        Some(stores) => format!("{node}:{}", stores.join("+")),
        None => node.clone(),
    };
    let places: Vec<String> = info.nodes.iter().map(place).collect();
    places.join(between)
}

fn to_json(info: &DatasetInfo, names: &mut OwnerNames) -> serde_json::Value {
    let readers: Vec<String> = info
        .readers
        .iter()
        .map(|r| names.of(*r).to_owned())
        .collect();
    serde_json::json!({
        "schema": 1, "name": names.dataset(info.owner, &info.workflow, &info.dataset),
        "version": info.version, "bytes": info.bytes, "nodes": info.nodes,
        "stores": info.stores, "awaits": info.awaits, "failed": info.failed, "jobs": info.jobs, "readers": readers,
        // Seconds since 1970.
        "until": info.until.map(|at| at / tarn_types::units::SECOND), "ends_soon": info.ends_soon,
    })
}

pub(super) fn ls(globals: &Globals, of: Option<&str>) -> CliResult {
    let owner = match of {
        Some(text) => Some(number(&text.parse::<Whose>().exit(Exit::Usage)?)?),
        None => None,
    };
    let all = datasets(DatasetFilter {
        owner,
        ..DatasetFilter::default()
    })?;
    let mut names = OwnerNames::default();
    if globals.json {
        for info in &all {
            print::json(&to_json(info, &mut names))?;
        }
        return Ok(Exit::Success);
    }
    if all.is_empty() {
        message!("no data of yours is stored on the site's nodes");
        return Ok(Exit::Success);
    }
    let now = now();
    out!(
        "{:<32} {:>7} {:>12}  {:<22} nodes",
        "dataset",
        "version",
        "size",
        "kept"
    )?;
    for info in &all {
        out!(
            "{:<32} {:>7} {:>12}  {:<22} {}",
            names.dataset(info.owner, &info.workflow, &info.dataset),
            info.version,
            Bytes(info.bytes).to_string(),
            stays(info, now),
            places(info, ",")
        )?;
    }
    Ok(Exit::Success)
}

pub(super) fn show(globals: &Globals, dataset: &NamedDataset) -> CliResult {
    let place = SiteDataset::of(dataset)?;
    let all = datasets(DatasetFilter {
        owner: Some(place.owner),
        workflow: Some(place.workflow),
        dataset: Some(place.dataset),
    })?;
    let mut names = OwnerNames::default();
    let Some(first) = all.first() else {
        let text =
            format!("`{dataset}` is not there, or not yours to read (`tarn data ls --site`)");
        return Err(CliError::new(Exit::NotFound, text));
    };
    if globals.json {
        for info in &all {
            print::json(&to_json(info, &mut names))?;
        }
        return Ok(Exit::Success);
    }
    out!(
        "{}",
        names.dataset(first.owner, &first.workflow, &first.dataset)
    )?;
    if !first.readers.is_empty() {
        let readers: Vec<String> = first
            .readers
            .iter()
            .map(|r| names.of(*r).to_owned())
            .collect();
        out!("  read by {}", readers.join(", "))?;
    }
    let now = now();
    for info in &all {
        let nodes = if info.nodes.is_empty() {
            String::new()
        } else {
            format!(", on {}", places(info, ", "))
        };
        let size = Bytes(info.bytes);
        out!(
            "  version {}: {size}{nodes}; kept: {}",
            info.version,
            stays(info, now)
        )?;
        if let Some(why) = &info.failed {
            out!("    {why}")?;
        }
        if !info.jobs.is_empty() {
            let jobs: Vec<String> = info.jobs.iter().map(u32::to_string).collect();
            out!("    needed by job {}", jobs.join(", "))?;
        }
    }
    Ok(Exit::Success)
}

pub(super) fn grant(dataset: &NamedDataset, who: &Whose, may: bool) -> CliResult {
    let place = SiteDataset::of(dataset)?;
    let request = ControllerRequest::Grant {
        owner: place.owner,
        workflow: place.workflow,
        dataset: place.dataset,
        to: number(who)?,
        may,
    };
    done(ask(&request))
}

pub(super) fn keep(dataset: &NamedDataset, time: &str) -> CliResult {
    let until = match time {
        "forever" => Time::MAX,
        time => {
            let time = parse_time(time).with_context(|| format!("how long: `{time}`"));
            now().saturating_add(time.exit(Exit::Usage)?)
        }
    };
    let place = SiteDataset::of(dataset)?;
    let request = ControllerRequest::Keep {
        owner: place.owner,
        workflow: place.workflow,
        dataset: place.dataset,
        until,
    };
    done(ask(&request))
}

pub(super) fn release(dataset: &NamedDataset) -> CliResult {
    let place = SiteDataset::of(dataset)?;
    let request = ControllerRequest::Release {
        owner: place.owner,
        workflow: place.workflow,
        dataset: place.dataset,
    };
    done(ask(&request))
}

/// Has the nodes read all replicas again, and shows what they found.
pub(super) fn verify(globals: &Globals, dataset: &NamedDataset, version: Option<u64>) -> CliResult {
    let version = version.map(u32::try_from).transpose().exit(Exit::Usage)?;
    let place = SiteDataset::of(dataset)?;
    let request = ControllerRequest::Verify {
        owner: place.owner,
        workflow: place.workflow,
        dataset: place.dataset,
        version,
    };
    let found = match ControllerClient::of_environment().ask_once(&request, READING)? {
        ControllerReply::Replicas(found) => found,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    for replica in &found {
        show_replica(globals, dataset, replica)?;
    }
    let count = |state| found.iter().filter(|r| r.state == state).count();
    let (damaged, unread) = (count(ReplicaState::Damaged), count(ReplicaState::Unread));
    if damaged > 0 {
        message!(
            "jobs that would read a damaged replica stay at their gate; `tarn data rm {dataset}` removes all of it, and the next job has it brought or made again"
        );
        let text = format!("{damaged} of the replicas of `{dataset}` are not what was published");
        return Err(CliError::new(Exit::WorkflowFailed, text));
    }
    let absent = count(ReplicaState::Absent);
    if absent > 0 {
        let text = format!("{absent} of the parts of `{dataset}` are on no node");
        return Err(CliError::new(Exit::NotFound, text));
    }
    if unread > 0 {
        let text =
            format!("{unread} of the replicas of `{dataset}` could not be read: ask again later");
        return Err(CliError::new(Exit::State, text));
    }
    Ok(Exit::Success)
}

fn show_replica(globals: &Globals, dataset: &NamedDataset, replica: &ReplicaInfo) -> CliResult<()> {
    let state = match replica.state {
        ReplicaState::Whole => "whole",
        ReplicaState::Damaged => "damaged",
        ReplicaState::Unread => "unread",
        ReplicaState::Absent => "absent",
    };
    let place = match (&replica.node[..], &replica.store[..]) {
        ("", _) => "-".to_owned(),
        (node, "") => node.to_owned(),
        _ => format!("{}:{}", replica.node, replica.store),
    };
    if globals.json {
        return print::json(&serde_json::json!({
            "schema": 1, "dataset": dataset.to_string(), "version": replica.version,
            "part": replica.part, "place": place, "bytes": replica.bytes, "state": state,
            "why": replica.why,
        }));
    }
    let why = if replica.why.is_empty() {
        String::new()
    } else {
        format!(": {}", replica.why)
    };
    out!(
        "{state:<10} {place:<16} {:>12}  version {}, part {}{why}",
        Bytes(replica.bytes).to_string(),
        replica.version,
        replica.part
    )
}

pub(super) fn remove(dataset: &NamedDataset, version: Option<u64>) -> CliResult {
    let version = version.map(u32::try_from).transpose().exit(Exit::Usage)?;
    let place = SiteDataset::of(dataset)?;
    let request = ControllerRequest::Remove {
        owner: place.owner,
        workflow: place.workflow,
        dataset: Some(place.dataset),
        version,
    };
    done(ask(&request))
}

/// Shows the orphans, or removes them and shows which.
pub(super) fn orphans(globals: &Globals, remove: bool) -> CliResult {
    let request = if remove {
        ControllerRequest::RemoveOrphans
    } else {
        ControllerRequest::Orphans
    };
    let all = match ask(&request)? {
        ControllerReply::Orphans(all) => all,
        ControllerReply::Refused(why) => return Err(refused(&why)),
        other => return Err(unexpected(&other)),
    };
    let mut names = OwnerNames::default();
    if all.is_empty() {
        message!("no data of yours on the site's nodes is without a dataset");
    }
    for orphan in &all {
        show_orphan(globals, orphan, &mut names)?;
    }
    if remove && !all.is_empty() {
        message!("they are removed as soon as their nodes answer");
    }
    Ok(Exit::Success)
}

fn show_orphan(globals: &Globals, orphan: &OrphanInfo, names: &mut OwnerNames) -> CliResult<()> {
    let owner = names.of(orphan.owner);
    if globals.json {
        return print::json(&serde_json::json!({
            "schema": 1, "node": orphan.node, "owner": owner, "what": orphan.what,
            "bytes": orphan.bytes, "since": orphan.since / tarn_types::units::SECOND,
        }));
    }
    let since = Elapsed(now().saturating_sub(orphan.since));
    out!(
        "{:<16} {:<16} {:>12}  {}, since {since}",
        orphan.node,
        owner,
        Bytes(orphan.bytes).to_string(),
        orphan.what
    )
}
