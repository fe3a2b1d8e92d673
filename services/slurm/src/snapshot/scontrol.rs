//! Partitions, reservations, licences and settings from `scontrol -o show ...`, whose texts are all administrators'.

use super::hostlist::NodeLists;
use super::values::{limit, number, parts, settings as lines, text, time, words};
use super::{
    Answers, PartitionState, SlurmLicence, SlurmPartition, SlurmReservation, SlurmSettings,
    unreadable,
};
use crate::SlurmError;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The lines that begin with this key, as words.
fn records<'t>(
    output: &'t str,
    key: &'static str,
) -> impl Iterator<Item = BTreeMap<&'t str, &'t str>> {
    let lines = output.lines();
    let lines = lines.filter(move |line| {
        let behind = line.strip_prefix(key);
        behind.is_some_and(|behind| behind.starts_with('='))
    });
    lines.map(words)
}

fn value<'t>(words: &BTreeMap<&str, &'t str>, key: &str) -> &'t str {
    words.get(key).map(|value| text(value)).unwrap_or_default()
}

fn small(words: &BTreeMap<&str, &str>, key: &str) -> u32 {
    let number = number(value(words, key)).unwrap_or(0);
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(super) fn partitions(
    answers: &Answers,
    lists: &mut NodeLists,
) -> Result<BTreeMap<String, SlurmPartition>, SlurmError> {
    let output = String::from_utf8_lossy(&answers.partitions);
    let mut partitions = BTreeMap::new();
    for words in records(&output, "PartitionName") {
        let name = value(&words, "PartitionName").to_owned();
        let partition = SlurmPartition {
            name: name.clone(),
            nodes: lists.names(value(&words, "Nodes"))?,
            max_time: limit(value(&words, "MaxTime"))
                .flatten()
                .map(|l| l.as_secs()),
            tier: small(&words, "PriorityTier"),
            state: match value(&words, "State") {
                "UP" => PartitionState::Up,
                "DOWN" => PartitionState::Down,
                "DRAIN" => PartitionState::Drain,
                "INACTIVE" => PartitionState::Inactive,
                _ => PartitionState::Unknown,
            },
            is_default: value(&words, "Default") == "YES",
            oversubscribe: value(&words, "OverSubscribe").to_owned(),
        };
        partitions.insert(name, partition);
    }
    Ok(partitions)
}

pub(super) fn reservations(
    answers: &Answers,
    lists: &mut NodeLists,
) -> Result<BTreeMap<String, SlurmReservation>, SlurmError> {
    let output = String::from_utf8_lossy(&answers.reservations);
    let mut reservations = BTreeMap::new();
    for words in records(&output, "ReservationName") {
        let name = value(&words, "ReservationName").to_owned();
        let reservation = SlurmReservation {
            name: name.clone(),
            nodes: lists.names(value(&words, "Nodes"))?,
            start: time(value(&words, "StartTime")),
            end: time(value(&words, "EndTime")),
            users: parts(value(&words, "Users")),
            accounts: parts(value(&words, "Accounts")),
            flags: parts(value(&words, "Flags")),
            licences: value(&words, "Licenses").to_owned(),
            is_active: value(&words, "State") == "ACTIVE",
        };
        reservations.insert(name, reservation);
    }
    Ok(reservations)
}

pub(super) fn licences(answers: &Answers) -> BTreeMap<String, SlurmLicence> {
    let output = String::from_utf8_lossy(&answers.licences);
    let mut licences = BTreeMap::new();
    for words in records(&output, "LicenseName") {
        let name = value(&words, "LicenseName").to_owned();
        let licence = SlurmLicence {
            name: name.clone(),
            total: small(&words, "Total"),
            used: small(&words, "Used"),
            reserved: small(&words, "Reserved"),
        };
        licences.insert(name, licence);
    }
    licences
}

pub(super) fn settings(answers: &Answers) -> Result<SlurmSettings, SlurmError> {
    let output: Cow<'_, str> = String::from_utf8_lossy(&answers.config);
    let lines = lines(&output);
    let get = |key: &'static str| lines.get(key).map(|value| text(value)).unwrap_or_default();
    // `300 sec`, `5 min`.
    let seconds = |key: &'static str| {
        let (count, unit) = get(key).split_once(' ')?;
        let unit = match unit {
            "sec" => 1,
            "min" => 60,
            _ => return None,
        };
        number(count)?.checked_mul(unit)
    };
    let version = get("SLURM_VERSION").to_owned();
    if version.is_empty() {
        return Err(unreadable("scontrol show config", "no SLURM_VERSION"));
    }
    Ok(SlurmSettings {
        version,
        boot_time: time(get("BOOT_TIME")),
        scheduler_type: get("SchedulerType").to_owned(),
        scheduler_parameters: parts(get("SchedulerParameters")),
        priority_type: get("PriorityType").to_owned(),
        min_job_age: seconds("MinJobAge"),
        reservation_overrun: seconds("ResvOverRun"),
        job_completion_type: get("JobCompType").to_owned(),
        energy_type: get("AcctGatherEnergyType").to_owned(),
    })
}
