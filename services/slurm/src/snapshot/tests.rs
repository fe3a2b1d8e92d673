use super::fields::{JOB_COLUMNS, NODE_COLUMNS, column_width};
use super::*;
use proptest::prelude::*;

const CONFIG: &str = "Configuration data as of 1764500000\nBOOT_TIME               = 1764499000
MinJobAge               = 300 sec\nResvOverRun             = UNLIMITED\nSLURM_VERSION           = 22.05.8
SchedulerParameters     = batch_sched_delay=0,bf_interval=30\nSchedulerType           = sched/backfill\n";

/// A record as Slurm writes it: each value cut at its width and filled up with spaces.
fn record(columns: &[fields::Column], is_wide: bool, values: &[(&str, &str)]) -> Vec<u8> {
    let mut record = Vec::new();
    for column in columns {
        let value = values.iter().find(|(name, _)| *name == column.0);
        let mut bytes = value
            .map_or("(null)", |(_, value)| value)
            .as_bytes()
            .to_vec();
        if value.is_none() && column.1 < 6 {
            bytes.clear();
        }
        bytes.resize(column_width(column, is_wide), b' ');
        record.extend(bytes);
    }
    record.push(b'\n');
    record
}

fn job(values: &[(&str, &str)]) -> Vec<u8> {
    record(&JOB_COLUMNS, false, values)
}

/// The record of a job's excluded nodes.
fn excluded(job: &str, nodes: &str) -> Vec<u8> {
    record(
        &fields::EXCLUDED_COLUMNS,
        false,
        &[("A", job), ("x", nodes)],
    )
}

fn answers(jobs: Vec<u8>, excluded: Vec<u8>) -> Answers {
    Answers {
        jobs,
        excluded,
        config: CONFIG.into(),
        ..Answers::default()
    }
}

const PENDING: [(&str, &str); 13] = [
    ("JobID", "17"),
    ("ArrayJobID", "17"),
    ("ArrayTaskID", "N/A"),
    ("UserID", "7001"),
    ("Partition", "main,short"),
    ("State", "PENDING"),
    ("Reason", "Priority"),
    ("Nice", "-5"),
    ("SubmitTime", "1764500001"),
    ("StartTime", "N/A"),
    ("TimeLimit", "1-00:00:00"),
    ("NumNodes", "2"),
    ("tres-alloc", "cpu=2,mem=400M,node=2,billing=2"),
];

#[test]
fn a_waiting_job_is_read_from_columns() {
    let answers = answers(job(&PENDING), excluded("17", "n[1-2]"));
    let snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
    let job = &snapshot.jobs[&17];
    assert_eq!(job.state, SlurmJobState::Pending);
    assert_eq!(job.reason, PendingReason::Priority);
    assert_eq!(job.partitions, ["main", "short"]);
    assert_eq!(
        (job.user, job.nice, job.min_nodes, job.max_nodes),
        (7001, -5, 2, 2)
    );
    assert_eq!((job.submitted, job.start), (Some(1_764_500_001), None));
    assert_eq!((job.limit, job.memory), (Some(86_400), Some(400 << 20)));
    assert_eq!(job.excluded[..], ["n1", "n2"]);
    assert!(job.array.is_none() && job.het.is_none() && !job.has_burst_buffer);
    assert!(!job.is_incomplete);
    let settings = &snapshot.settings;
    assert_eq!(settings.boot_time, Some(1_764_499_000));
    assert_eq!(settings.scheduler_parameters[1], "bf_interval=30");
    assert_eq!(
        (settings.min_job_age, settings.reservation_overrun),
        (Some(300), None)
    );
}

/// A user who writes a whole record of another job into a text gets that text, and no job.
#[test]
fn a_text_that_looks_like_a_record_stays_in_its_column() {
    let forged = String::from_utf8(job(&[("JobID", "1"), ("State", "RUNNING")])).unwrap();
    let forged = format!("\n{}", &forged[..100]);
    for column in [
        "Licenses",
        "Feature",
        "Reason",
        "Dependency",
        "tres-per-node",
    ] {
        let mut values = PENDING.to_vec();
        values.retain(|(name, _)| *name != column);
        values.push((column, &forged[..90]));
        let mut jobs = job(&values);
        jobs.extend(job(&[("JobID", "18"), ("State", "RUNNING")]));
        let answers = answers(
            jobs,
            [excluded("17", "(null)"), excluded("18", "")].concat(),
        );
        let snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
        let found: Vec<_> = snapshot
            .jobs
            .values()
            .map(|job| (job.number, &job.state))
            .collect();
        let expected = [(17, &SlurmJobState::Pending), (18, &SlurmJobState::Running)];
        assert_eq!(found, expected, "{column}");
    }
    let mut values = PENDING.to_vec();
    values.push(("BurstBuffer", "\n"));
    let snapshot = SlurmSnapshot::from_fields(&answers(job(&values), Vec::new())).unwrap();
    assert!(snapshot.jobs[&17].has_burst_buffer && snapshot.jobs.len() == 1);
}

#[test]
fn a_list_that_is_cut_is_asked_for_again_and_never_read_half() {
    let mut values = PENDING.to_vec();
    let nodes = format!("n[{}", "1000,".repeat(40));
    values.push(("ReqNodes", &nodes[..160]));
    let mut answers = answers(job(&values), excluded("17", "(null)"));
    assert_eq!(fields::cut_jobs(&answers).unwrap(), [17].into());
    let snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
    let job = &snapshot.jobs[&17];
    assert!(job.is_incomplete && job.required.is_empty());

    values.pop();
    values.push(("ReqNodes", "n[1-3],m7"));
    answers.wide_jobs = record(&JOB_COLUMNS, true, &values);
    let snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
    let job = &snapshot.jobs[&17];
    assert!(!job.is_incomplete && job.required.len() == 4);
}

#[test]
fn an_output_of_another_length_is_an_error() {
    let whole = job(&PENDING);
    let cut = whole[..whole.len() - 1].to_vec();
    let long = [&whole[..], b" "].concat();
    let shifted = [b"slurm: warning\n", &whole[..]].concat();
    for jobs in [cut, long, shifted, b"\n".to_vec(), b"17|PENDING\n".to_vec()] {
        let error = SlurmSnapshot::from_fields(&answers(jobs, Vec::new())).unwrap_err();
        assert!(error.to_string().contains("squeue"), "{error}");
    }
    let none = SlurmSnapshot::from_fields(&answers(Vec::new(), Vec::new())).unwrap();
    assert!(none.jobs.is_empty() && none.nodes.is_empty());
}

#[test]
fn a_node_of_two_partitions_is_one_node() {
    let mut values = vec![
        ("NodeList", "n1"),
        ("PartitionName", "main"),
        ("StateComplete", "mixed+planned"),
        ("CPUsState", "3/5/0/8"),
        ("Memory", "4000"),
        ("AllocMem", "500"),
        ("Features", "big,n1"),
        ("Reason", "none"),
    ];
    let mut nodes = record(&NODE_COLUMNS, false, &values);
    values[1].1 = "short";
    nodes.extend(record(&NODE_COLUMNS, false, &values));
    let mut answers = answers(Vec::new(), Vec::new());
    answers.nodes = nodes;
    let snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
    let node = &snapshot.nodes["n1"];
    assert_eq!(node.state, SlurmNodeState::parse("MIXED+PLANNED"));
    assert_eq!((node.cpus, node.cpus_allocated), (8, 3));
    assert_eq!(
        (node.memory, node.memory_allocated),
        (4000 << 20, 500 << 20)
    );
    assert_eq!(
        node.partitions,
        ["main".to_owned(), "short".to_owned()].into()
    );
    assert_eq!(
        (&node.reason[..], &node.features[..]),
        ("", &["big".to_owned(), "n1".to_owned()][..])
    );
}

fn json(jobs: &str, nodes: &str) -> Result<SlurmSnapshot, SlurmError> {
    let mut answers = answers(format!("{{\"jobs\": [{jobs}]}}").into(), Vec::new());
    answers.nodes = format!("{{\"nodes\": [{nodes}]}}").into();
    SlurmSnapshot::from_json(&answers)
}

/// The same job and node as 22.05 writes them, and as releases from 23.02 on do.
#[test]
fn both_forms_of_json_are_the_same_job() {
    let old = json(
        r#"{"job_id": 9, "job_state": "PENDING", "priority": 7, "time_limit": 60, "shared": "none", "array_task_id": null,
            "nice": -5, "state_reason": "Resources", "state_description": "", "excluded_nodes": "n[1-2]", "start_time": 0}"#,
        r#"{"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "features": "a,b", "partitions": ["p"], "cpus": 4}"#,
    );
    let new = json(
        r#"{"job_id": 9, "job_state": ["PENDING"], "priority": {"set": true, "infinite": false, "number": 7},
            "time_limit": {"set": true, "infinite": false, "number": 60}, "shared": ["none"], "nice": -5,
            "array_task_id": {"set": false, "infinite": false, "number": 0}, "state_reason": "Resources",
            "state_description": "", "excluded_nodes": "n[1-2]", "start_time": {"set": true, "number": 0}}"#,
        r#"{"name": "n1", "state": ["IDLE", "DRAIN"], "features": ["a", "b"], "partitions": ["p"], "cpus": 4}"#,
    );
    let (old, new) = (old.unwrap(), new.unwrap());
    assert_eq!(old, new);
    let job = &old.jobs[&9];
    assert_eq!((job.limit, job.priority, job.nice), (Some(3600), 7, -5));
    assert!(job.is_exclusive && job.array.is_none() && job.start.is_none());
    assert!(!old.nodes["n1"].state.is_usable());
}

#[test]
fn json_of_another_shape_is_an_error_and_an_ended_job_is_none() {
    assert!(json(r#"{"name": "no number"}"#, "").is_err());
    assert!(json("", r#"{"state": "idle"}"#).is_err());
    assert!(json("{", "").is_err());
    let texts = r#"{"job_id": 9, "job_state": "COMPLETED"}, {"job_id": 10, "name": "{\"job_id\": 11}\n\"jobs\":["}"#;
    let snapshot = json(texts, "").unwrap();
    assert_eq!(snapshot.jobs.keys().collect::<Vec<_>>(), [&10]);
    let endless = r#"{"job_id": 9, "job_state": "RUNNING", "time_limit": {"set": false, "infinite": true, "number": 0}, "end_time": 5}"#;
    let snapshot = json(endless, "").unwrap();
    assert_eq!(
        (snapshot.jobs[&9].limit, snapshot.jobs[&9].end),
        (None, None)
    );
}

#[test]
fn a_reason_is_its_name_and_its_text() {
    let reasons = |code: &str, text: &str| {
        let job =
            format!(r#"{{"job_id": 9, "state_reason": "{code}", "state_description": "{text}"}}"#);
        json(&job, "").unwrap().jobs[&9].reason.clone()
    };
    assert_eq!(reasons("BeginTime", ""), PendingReason::BeginTime);
    assert_eq!(
        reasons("JobHeldAdmin", "burst_buffer/lua: no"),
        PendingReason::HeldByAdministrator
    );
    let reserved = reasons("None", "ReqNodeNotAvail, May be reserved for other job");
    assert_eq!(reserved, PendingReason::RequiredNodeNotAvailable);
}

#[test]
fn partitions_and_reservations_are_read_from_scontrol() {
    let mut answers = answers(Vec::new(), Vec::new());
    answers.partitions = b"PartitionName=main AllowGroups=ALL Default=YES MaxTime=UNLIMITED Nodes=n[1-2] PriorityTier=3 OverSubscribe=NO State=UP
PartitionName=old MaxTime=1-00:00:00 Nodes=(null) PriorityTier=1 State=INACTIVE\n".to_vec();
    answers.reservations = b"ReservationName=r StartTime=1764500000 EndTime=1764503600 Duration=01:00:00 Nodes=n2 Flags=MAINT,FLEX Users=a,b Accounts=(null) State=ACTIVE Comment=x State=INACTIVE ReservationName=s\n".to_vec();
    let snapshot = SlurmSnapshot::from_fields(&answers).unwrap();
    let main = &snapshot.partitions["main"];
    assert!(main.is_default && main.state == PartitionState::Up && main.max_time.is_none());
    assert_eq!((main.tier, main.nodes.len()), (3, 2));
    let old = &snapshot.partitions["old"];
    assert_eq!(
        (old.state, old.max_time),
        (PartitionState::Inactive, Some(86_400))
    );
    assert_eq!(snapshot.reservations.len(), 1);
    let reservation = &snapshot.reservations["r"];
    assert!(reservation.is_active && reservation.flags == ["MAINT", "FLEX"]);
    assert_eq!(
        (reservation.users.len(), reservation.end),
        (2, Some(1_764_503_600))
    );
    answers.reservations = b"No reservations in the system\n".to_vec();
    assert!(
        SlurmSnapshot::from_fields(&answers)
            .unwrap()
            .reservations
            .is_empty()
    );
}

proptest! {
    #[test]
    fn no_output_panics(
        jobs in proptest::collection::vec(any::<u8>(), 0..400),
        nodes in "\\PC{0,200}",
        lines in "(PartitionName|ReservationName|LicenseName|Nodes|MaxTime|[a-z ]){0,4}(=[^ ]{0,8} ?){0,3}",
    ) {
        let mut answers = answers(jobs, nodes.clone().into_bytes());
        answers.nodes = nodes.into_bytes();
        answers.partitions = lines.clone().into_bytes();
        answers.reservations = lines.clone().into_bytes();
        answers.licences = lines.into_bytes();
        let _ = SlurmSnapshot::from_fields(&answers);
        let _ = SlurmSnapshot::from_json(&answers);
        answers.jobs.clear();
        answers.excluded.clear();
        answers.nodes.clear();
        let _ = SlurmSnapshot::from_fields(&answers);
    }

    /// Any bytes in any column: one job, with this number, or an error.
    #[test]
    fn any_bytes_in_a_column_stay_there(at in 1usize..34, bytes in proptest::collection::vec(any::<u8>(), 1..60)) {
        let mut record = job(&PENDING);
        let begin: usize = JOB_COLUMNS[..at].iter().map(|column| column.1).sum();
        for (place, byte) in record[begin..begin + JOB_COLUMNS[at].1].iter_mut().zip(bytes) {
            *place = byte;
        }
        if let Ok(snapshot) = SlurmSnapshot::from_fields(&answers(record, Vec::new())) {
            prop_assert!(snapshot.jobs.len() <= 1 && snapshot.jobs.keys().all(|job| *job == 17));
        }
    }

    /// A text that is no list of nodes, in one of many jobs: that job is there and incomplete, the others are as without it.
    #[test]
    fn one_odd_list_does_not_hide_the_other_jobs(at in 0usize..6, list in 0usize..3, odd in "n\\[[a-z]{1,9}") {
        let numbers = ["11", "12", "13", "14", "15", "16"];
        let key = ["ReqNodes", "NodeList", "SchedNodes"][list];
        let columns = |odd_list: Option<&str>| {
            let jobs = numbers.iter().enumerate().map(|(n, number)| {
                let mut values = vec![("JobID", *number), ("State", "RUNNING"), ("NodeList", "n[1-2]")];
                if let Some(odd) = odd_list.filter(|_| n == at) {
                    values.retain(|(name, _)| *name != key);
                    values.push((key, odd));
                }
                job(&values)
            });
            let excluded: Vec<u8> = numbers.iter().flat_map(|number| excluded(number, "(null)")).collect();
            SlurmSnapshot::from_fields(&answers(jobs.flatten().collect(), excluded)).unwrap()
        };
        let key = ["required_nodes", "nodes", "scheduled_nodes"][list];
        let of_json = |odd_list: Option<&str>| {
            let jobs = numbers.iter().enumerate().map(|(n, number)| match odd_list.filter(|_| n == at) {
                Some(odd) => format!(r#"{{"job_id": {number}, "job_state": "RUNNING", "{key}": "{odd}"}}"#),
                None => format!(r#"{{"job_id": {number}, "job_state": "RUNNING"}}"#),
            });
            json(&jobs.collect::<Vec<_>>().join(","), "").unwrap()
        };
        let pairs = [(columns(None), columns(Some(&odd))), (of_json(None), of_json(Some(&odd)))];
        for (mut good, mut with_odd) in pairs {
            let number = 11 + at as u32;
            good.jobs.remove(&number).unwrap();
            prop_assert!(with_odd.jobs.remove(&number).is_some_and(|job| job.is_incomplete));
            prop_assert_eq!(good, with_odd);
        }
    }

    /// Values of any type where Slurm has others.
    #[test]
    fn json_of_any_values_does_not_panic(key in "(job_id|job_state|nice|time_limit|nodes|partition|array_task_id|tres_req_str)", value in "(null|-1|1e300|18446744073709551615|\"n\\[1-[0-9]{1,9}\\]\"|\\[1,\"a\"\\]|\\{\"set\":true,\"number\":-7\\}|true)") {
        let job = format!("{{\"job_id\": 5, \"{key}x\": 1, \"{key}\": {value}}}");
        let _ = json(&job, "");
        let _ = json("", &format!("{{\"name\": \"n\", \"state\": {value}, \"cpus\": {value}, \"real_memory\": {value}}}"));
    }
}
