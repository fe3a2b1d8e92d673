//! Lines of `jobcomp/filetxt`. Two of their texts are the user's (the job's name and its folder) and may hold anything, newlines
//! too. So a record reaches from one line that begins as Slurm's do to the next, and one in which a field is there twice, or
//! lacks, is not read: nobody's text takes the place of a field. But a name can hold a whole line of this file: only `sacct` is
//! safe from that.

use super::{AccountingAnswer, gpus_of, nodes_of, state_of};
use crate::snapshot::hostlist::NodeLists;
use crate::snapshot::values::{limit, memory_of, number, text};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;
use tarn_types::site::AccountedJob;

/// The fields of a line, in their order (`jobcomp_filetxt.c` of Slurm 22.05 and 24.11).
const KEYS: [&str; 18] = [
    "JobId",
    "UserId",
    "GroupId",
    "Name",
    "JobState",
    "Partition",
    "TimeLimit",
    "StartTime",
    "EndTime",
    "NodeList",
    "NodeCnt",
    "ProcCnt",
    "WorkDir",
    "ReservationName",
    "Tres",
    "QOS",
    "SubmitTime",
    "EligibleTime",
];
/// Bytes of one record; Slurm bounds a name and a folder below that.
const MAX_RECORD: usize = 64 << 10;

pub(super) fn read(bytes: &[u8], zone: &TimeZone) -> AccountingAnswer {
    let mut lists = NodeLists::default();
    let mut answer = AccountingAnswer::default();
    let mut record = Vec::new();
    // By number and start: the position of an attempt.
    let mut known: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    let mut add = |record: &[u8]| match to_job(record, zone, &mut lists) {
        Some(job) => {
            let at = job.start.and_then(|start| known.get(&(job.number, start)));
            // Slurm writes a job that had ended and is put back into the queue once more, with that time as its end.
            if let Some(before) = at.and_then(|at| answer.jobs.get_mut(*at)) {
                before.state = job.state;
                return;
            }
            if let Some(start) = job.start {
                known.insert((job.number, start), answer.jobs.len());
            }
            answer.jobs.push(job);
        }
        None => answer.unreadable += 1,
    };
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        if begins_record(line) && !record.is_empty() {
            add(&record);
            record.clear();
        }
        let left = (MAX_RECORD + 1).saturating_sub(record.len());
        record.extend_from_slice(&line[..line.len().min(left)]);
    }
    if !record.is_empty() {
        add(&record);
    }
    answer.bound()
}

/// `JobId=7 UserId=alice(7001) GroupId=`: a line that Slurm began, or one that is made to look so.
fn begins_record(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"JobId=") else {
        return false;
    };
    let mut words = rest.split(|b| *b == b' ');
    let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    words.next().is_some_and(is_number)
        && words.next().is_some_and(|w| w.starts_with(b"UserId="))
        && words.next().is_some_and(|w| w.starts_with(b"GroupId="))
}

/// The values of the fields. Each key is there once.
fn values_of(record: &str) -> Option<[&str; KEYS.len()]> {
    let mut values = [""; KEYS.len()];
    let mut from = 0;
    let mut last: Option<usize> = None;
    for (at, key) in KEYS.iter().enumerate() {
        let mark = match at {
            0 => format!("{key}="),
            _ => format!(" {key}="),
        };
        let rest = record.get(from..)?;
        let found = rest.find(&mark)?;
        if (at == 0 && found > 0) || (at > 0 && record.matches(&mark).count() != 1) {
            return None;
        }
        if let Some(last) = last {
            values[last] = rest.get(..found)?;
        }
        from += found + mark.len();
        last = Some(at);
    }
    values[KEYS.len() - 1] = record.get(from..)?.split(' ').next()?;
    Some(values)
}

fn to_job(record: &[u8], zone: &TimeZone, lists: &mut NodeLists) -> Option<AccountedJob> {
    let record = std::str::from_utf8(record).ok()?.strip_suffix('\n')?;
    let [
        id,
        user,
        _,
        _,
        state,
        partition,
        limited,
        start,
        end,
        nodes,
        wanted,
        cpus,
        _,
        reservation,
        resources,
        qos,
        submit,
        eligible,
    ] = values_of(record)?.map(|value| value.split(' ').next().unwrap_or_default());
    let nodes = nodes_of(lists, text(nodes))?;
    // A job that was cancelled in the queue has the same time as its start and its end.
    let start = time(start, zone).filter(|_| !nodes.is_empty());
    let end = time(end, zone);
    let requested_nodes = super::nodes_wanted(resources).or_else(|| number(wanted));
    Some(AccountedJob {
        number: id.parse().ok()?,
        user: user.split_once('(')?.1.strip_suffix(')')?.parse().ok()?,
        partition: partition.to_owned(),
        qos: qos.to_owned(),
        state: state_of(state, end.is_some())?,
        submitted: time(submit, zone),
        eligible: time(eligible, zone),
        start,
        end,
        limit: limit_of(limited)?,
        nodes,
        wanted: u32::try_from(requested_nodes.unwrap_or(1))
            .unwrap_or(u32::MAX)
            .max(1),
        cpus: number(cpus).unwrap_or(0),
        memory: memory_of(resources),
        gpus: gpus_of(resources),
        reservation: text(reservation).to_owned(),
        is_array_task: record.contains(" ArrayTaskId="),
    })
}

/// Minutes, in place of Slurm's usual form.
fn limit_of(value: &str) -> Option<Option<u64>> {
    match number(value) {
        Some(minutes) => Some(Some(minutes.checked_mul(60)?)),
        None => Some(limit(value)?.map(|limit| limit.as_secs())),
    }
}

/// A time of the day, in this zone; of two that an hour has in autumn the first. Seconds since 1970 where slurmctld runs with
/// `SLURM_TIME_FORMAT=%s`.
fn time(value: &str, zone: &TimeZone) -> Option<u64> {
    let seconds = match number(value) {
        Some(seconds) => seconds,
        None => {
            let local: DateTime = value.parse().ok()?;
            let at = zone.to_ambiguous_zoned(local).earlier().ok()?;
            u64::try_from(at.timestamp().as_second()).ok()?
        }
    };
    Some(seconds).filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tarn_types::site::AccountedState;

    const LINE: &str = "JobId=11 UserId=alice(7001) GroupId=alice(7001) Name=unlim JobState=COMPLETED Partition=main \
        TimeLimit=5 StartTime=2026-11-30T15:47:10 EndTime=2026-11-30T15:47:11 NodeList=node1 NodeCnt=1 ProcCnt=8 \
        WorkDir=/shared/home/alice ReservationName=class Tres=cpu=1,mem=200M,node=1,billing=1 Account= QOS=normal WcKey= \
        Cluster=unknown SubmitTime=2026-11-30T15:47:09 EligibleTime=2026-11-30T15:47:09 ArrayJobId=8 ArrayTaskId=0 \
        DerivedExitCode=0:0 ExitCode=0:0 \n";

    fn utc(text: &str) -> AccountingAnswer {
        read(text.as_bytes(), &TimeZone::UTC)
    }

    #[test]
    fn a_line_has_all_fields_of_a_job() {
        let answer = utc(LINE);
        let job = &answer.jobs[0];
        assert_eq!((job.number, job.user, job.limit), (11, 7001, Some(300)));
        assert_eq!(
            (job.cpus, job.memory, &job.nodes[..]),
            (8, Some(200 << 20), &["node1".to_owned()][..])
        );
        assert_eq!((&job.reservation[..], &job.qos[..]), ("class", "normal"));
        assert_eq!(
            (job.start, job.end),
            (Some(1_796_053_630), Some(1_796_053_631))
        );
        assert!(job.is_array_task && job.state == AccountedState::Completed);
        assert_eq!(answer.unreadable, 0);
    }

    #[test]
    fn times_are_those_of_the_machines_zone() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let answer = read(LINE.as_bytes(), &zone);
        assert_eq!(answer.jobs[0].start, Some(1_796_053_630 - 3600));
        let autumn = time("2026-10-25T02:30:00", &zone);
        assert_eq!(autumn, Some(1_792_888_200), "the first of two");
        assert_eq!(time("unknown", &zone), None);
        assert_eq!(time("1796053630", &zone), Some(1_796_053_630));
    }

    /// A job's name is its user's. It can hide its own record, and take no field of another.
    #[test]
    fn names_that_look_like_fields_are_not_read() {
        let named = |name: &str| LINE.replace("Name=unlim", &format!("Name={name}"));
        let plain = utc(&named("a|b JobId=99\nJobId=98 nothing"));
        assert_eq!(
            (plain.jobs.len(), plain.unreadable),
            (1, 0),
            "a newline alone is a name"
        );
        assert_eq!(plain.jobs[0].number, 11);
        for name in [
            "x JobState=FAILED",
            "x\nJobId=98 UserId=root(0) JobState=FAILED",
            "x Name=y",
            "x QOS=high",
        ] {
            let text = named(name) + LINE;
            let answer = utc(&text);
            assert_eq!((answer.jobs.len(), answer.unreadable), (1, 1), "{name}");
        }
    }

    #[test]
    fn lines_that_are_cut_count_as_unreadable() {
        let cut = &LINE[..LINE.len() - 40];
        let answer = utc(&format!("{}{LINE}{cut}", &LINE[30..]));
        assert_eq!((answer.jobs.len(), answer.unreadable), (1, 2));
        let endless = format!("{LINE}{}", "x".repeat(10 * MAX_RECORD));
        assert_eq!(utc(&endless).unreadable, 1);
    }

    #[test]
    fn a_job_that_never_had_nodes_has_no_start() {
        let line = LINE
            .replace("NodeList=node1", "NodeList=(null)")
            .replace("node=1", "node=5");
        let job = utc(&line).jobs.remove(0);
        assert_eq!((job.start, job.wanted), (None, 5));
    }

    proptest! {
        #[test]
        fn no_file_panics(name in "\\PC{0,40}", at in 0usize..700, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut line = LINE.replace("unlim", &name).into_bytes();
            let _ = read(&line, &TimeZone::UTC);
            line.truncate(at);
            line.extend(bytes);
            let _ = read(&line, &TimeZone::UTC);
        }
    }
}
