//! Lines of `sacct -n -P -X -D`. No field is a text of a user, so that none can look like two.

use super::{AccountingAnswer, cpus_of, gpus_of, nodes_of, state_of};
use crate::snapshot::hostlist::NodeLists;
use crate::snapshot::values::{memory_of, number, text, time};
use tarn_types::site::AccountedJob;

/// The fields, for `-o`.
pub(super) const FIELDS: &str = "JobIDRaw,UID,Partition,QOS,State,Submit,Eligible,Start,End,TimelimitRaw,ReqNodes,NodeList,AllocCPUS,ReqCPUS,AllocTRES,ReqTRES,Reservation,JobID";
const COUNT: usize = 18;

pub(super) fn read(bytes: &[u8]) -> AccountingAnswer {
    let mut lists = NodeLists::default();
    let mut answer = AccountingAnswer::default();
    // A line without a newline was cut.
    let end = bytes
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    answer.unreadable += u64::from(end < bytes.len());
    for line in bytes[..end].split(|b| *b == b'\n') {
        if line.is_empty() {
            continue;
        }
        match std::str::from_utf8(line)
            .ok()
            .and_then(|line| to_job(line, &mut lists))
        {
            Some(job) => answer.jobs.push(job),
            None => answer.unreadable += 1,
        }
    }
    answer.bound()
}

fn to_job(line: &str, lists: &mut NodeLists) -> Option<AccountedJob> {
    let fields: Vec<&str> = line.split('|').collect();
    let fields: [&str; COUNT] = fields.try_into().ok()?;
    let [
        id,
        user,
        partition,
        qos,
        state,
        submit,
        eligible,
        start,
        end,
        limit,
        wanted,
        nodes,
        cpus,
        wanted_cpus,
        allocated,
        requested,
        reservation,
        shown,
    ] = fields;
    let start = time(start);
    let end = time(end);
    let limit = match limit {
        "UNLIMITED" | "Partition_Limit" | "" => None,
        minutes => Some(number(minutes)?.checked_mul(60)?),
    };
    let resources = if allocated.is_empty() {
        requested
    } else {
        allocated
    };
    let cpus = number(cpus).filter(|cpus| *cpus > 0);
    Some(AccountedJob {
        number: id.parse().ok()?,
        user: user.parse().ok()?,
        partition: partition.to_owned(),
        qos: qos.to_owned(),
        state: state_of(state, start.is_some() && end.is_some())?,
        submitted: time(submit),
        eligible: time(eligible),
        start,
        end,
        limit,
        nodes: nodes_of(lists, text(nodes))?,
        wanted: u32::try_from(number(wanted).unwrap_or(1))
            .unwrap_or(u32::MAX)
            .max(1),
        cpus: cpus
            .or_else(|| number(wanted_cpus))
            .or_else(|| cpus_of(resources))
            .unwrap_or(0),
        memory: memory_of(resources),
        gpus: gpus_of(resources),
        reservation: text(reservation).to_owned(),
        is_array_task: shown.contains('_'),
    })
}
