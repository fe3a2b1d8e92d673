//! A site's history: what is written is read as it was, and anything else is refused with its line.

use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use tarn_spec::site::{
    Loaded, ReadOptions, machine_text, parse_machine, read_workload, write_history,
};
use tarn_types::id::NodeId;
use tarn_types::site::{
    BytesByWay, Fate, Flow, FlowId, Input, Item, ItemId, Job, JobId, JobResult, Machine, Mode,
    RecordedWorkload, SiteResult, Spread, Submit, WorkItem, WorkJob, Workload,
};

const CLUSTER: &str = r#"
name = "small"
[external]
read = "7 GB/s"
client-write = "1 GB/s"
saturates = 4
[[island]]
name = "a"
nodes = 4
cores = 8
gpus = 1
mode-change = { time = "10m", memory = "3 TB" }
link = { write = "2 GB/s" }
power = { idle = "200.5 W", busy = "600 W", wake = "5m" }
[[island.tier]]
name = "pmem"
capacity = "3 TB"
read = "3.3 GB/s"
app-direct = true
[[island]]
name = "b"
nodes = 2
cores = 16
mode = "2lm"
"#;

fn machine() -> Machine {
    parse_machine("cluster.toml", CLUSTER).expect("a cluster")
}

fn read(text: &[u8]) -> Result<Loaded, String> {
    let bytes = text.to_vec();
    let read = move |_: &Path| Ok(bytes.clone());
    read_workload("h".as_ref(), &machine(), &ReadOptions::default(), &read)
        .map_err(|e| e.to_string() + &format!("{:?}", e.problems()))
}

fn written(recorded: &RecordedWorkload) -> Vec<u8> {
    let mut text = Vec::new();
    write_history(recorded, &mut text).expect("it can be written");
    text
}

#[test]
fn a_machine_is_read_as_it_was_written() {
    let machine = machine();
    let text = machine_text(&machine);
    let again = parse_machine("again.toml", &text).expect("it is a cluster file");
    assert_eq!(again, machine, "{text}");
}

/// Numbers that a generator gives one by one.
type Draws<'d> = &'d mut dyn FnMut(u32) -> u32;

fn job(id: u32, draw: Draws<'_>, makes: Option<ItemId>, made: &[ItemId]) -> WorkJob {
    let limit = u64::from(draw(1 << 30)) + 1;
    let earlier = |draw: Draws<'_>| (id > 0 && draw(4) == 0).then(|| JobId(draw(id)));
    let reads = (!made.is_empty() && draw(2) == 0).then(|| Input {
        item: made[draw(made.len() as u32) as usize],
        spread: if draw(2) == 0 {
            Spread::Share
        } else {
            Spread::Whole
        },
    });
    let follows = earlier(draw);
    WorkJob {
        job: Arc::new(Job {
            flow: (draw(2) == 0).then_some(FlowId(draw(2))),
            nodes: draw(4) + 1,
            cores: draw(8),
            memory: u64::from(draw(1 << 20)),
            gpus: draw(2),
            mode: [None, Some(Mode::OneLevel), Some(Mode::TwoLevel)][draw(3) as usize],
            limit: limit + 1_000_000_000,
            expect: u64::from(draw(1 << 20)),
            after: earlier(draw).into_iter().collect(),
            continues: earlier(draw),
            reads: reads.into_iter().collect(),
            writes: makes.into_iter().collect(),
            submitted: None,
            place: (draw(2) == 0).then(|| u64::from(draw(1 << 30))),
            on: (draw(2) == 0)
                .then(|| Arc::new([NodeId(draw(9)), NodeId(70)].into_iter().collect())),
            not_before: u64::from(draw(1 << 30)),
        }),
        name: "".into(),
        submit: follows.map_or(Submit::At(u64::from(draw(1 << 30))), Submit::After),
        compute: u64::from(draw(1 << 30)),
    }
}

/// A workload that has run, with every kind of value.
fn recorded(jobs: u32, draw: Draws<'_>) -> RecordedWorkload {
    let mut all = RecordedWorkload::default();
    let mut made = vec![ItemId(0)];
    for item in 0..=jobs {
        let bytes = u64::from(draw(1 << 30));
        all.workload.items.push(WorkItem {
            item: Item {
                bytes: bytes + u64::from(draw(2)),
                outside: item == 0,
                keep: item > 0 && draw(2) == 0,
            },
            name: "".into(),
            bytes,
        });
    }
    for (name, arrives) in [("workflow-0", 3), ("workflow-1", 7)] {
        let name = name.to_owned();
        all.workload.flows.push(Flow { name, arrives });
    }
    for id in 0..jobs {
        let makes = (draw(2) == 0).then_some(ItemId(id + 1));
        let work = job(id, draw, makes, &made);
        made.extend(makes);
        let (begun, held) = (u64::from(draw(1 << 30)), u64::from(draw(1 << 30)));
        all.result.jobs.push(match draw(3) {
            0 => JobResult::default(),
            _ => JobResult {
                submitted: begun / 3,
                ready: begun / 2,
                begun,
                released: begun + held,
                held,
                io: held / 3,
                node_time: held * 2,
                attempts: 1,
                fate: Fate::Done,
            },
        });
        all.users.push(draw(3));
        all.workload.jobs.push(work);
    }
    all.result.delivered = vec![Some(u64::from(draw(1 << 30))), None];
    all.result.end = u64::from(draw(1 << 30));
    all.result.energy = f64::from(draw(1 << 30));
    all.result.bytes = BytesByWay {
        external_in: u64::from(draw(1 << 30)),
        external_out: 1,
        peer: 2,
        retained: 3,
    };
    all
}

fn facts(workload: &Workload) -> String {
    format!("{:?} {:?}", workload.jobs, workload.items) + &format!("{:?}", workload.flows)
}

fn facts_of(result: &SiteResult) -> String {
    format!("{result:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_history_is_read_as_it_was_written(seed in prop::collection::vec(any::<u32>(), 64), jobs in 1u32..20) {
        let mut at = 0;
        let mut draw = |most: u32| {
            at += 1;
            seed[at % seed.len()].wrapping_mul(2_654_435_761).rotate_left(at as u32 % 31) % most.max(1)
        };
        let recorded = recorded(jobs, &mut draw);
        let text = written(&recorded);
        let loaded = read(&text).map_err(TestCaseError::fail)?;
        prop_assert_eq!(facts(&loaded.workload), facts(&recorded.workload));
        let has_run = recorded.result.jobs.iter().any(|job| job.fate == Fate::Done);
        let expected = has_run.then(|| facts_of(&recorded.result));
        prop_assert_eq!(loaded.recorded.as_ref().map(facts_of), expected);
    }

    #[test]
    fn no_text_panics(text in "(tarn-history 1\n)?(\\{\"(job|item|workflow|totals|delivered)\":\\{\"?[a-z0-9,:\"\\[\\]-]{0,60}\\}\\}\n){0,5}") {
        let _ = read(text.as_bytes());
    }

    #[test]
    fn no_change_of_a_byte_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = written(&recorded(6, &mut |most| most / 2));
        let at = at.index(text.len());
        text[at] = byte;
        let _ = read(&text);
    }
}

#[test]
fn lines_that_make_no_sense_are_named() {
    let head = "tarn-history 1\n{\"item\":{\"bytes\":5}}\n";
    let job = |more: &str| {
        format!(
            "{{\"job\":{{\"user\":0,\"at\":0,\"nodes\":1,\"compute\":1,\"limit\":9,\"expect\":1{more}}}}}\n"
        )
    };
    let plain = job("");
    for (lines, part) in [
        (job(",\"reads\":[{\"item\":0}]"), "no job above it makes"),
        (job(",\"reads\":[{\"item\":7}]"), "no item 7"),
        (job(",\"after\":[0]"), "no job 0 above it"),
        (job(",\"workflow\":0"), "no workflow 0"),
        (job(",\"mode\":\"3lm\""), "no such memory mode"),
        (job(",\"name\":\"secret\""), "unknown field"),
        (plain.replace("\"nodes\":1", "\"nodes\":0"), "no nodes"),
        (plain.replace("\"limit\":9", "\"limit\":0"), "limit"),
        (plain.replace("\"at\":0", "\"at\":-1"), "line 3"),
        (job(",\"writes\":[0]").repeat(2), "line 4"),
        (String::new(), "no job"),
        (
            job(
                ",\"recorded\":{\"submitted\":0,\"ready\":0,\"begun\":5,\"released\":4,\"node_time\":0}",
            ),
            "before it had begun",
        ),
    ] {
        let text = format!("{head}{lines}");
        let error = read(text.as_bytes()).map(|_| ()).expect_err(&text);
        assert!(error.contains(part), "{text}: {error}");
    }
    let newer = read(b"tarn-history 2\n").map(|_| ()).expect_err("newer");
    assert!(newer.contains("newer tarn"), "{newer}");
    let long = format!("tarn-history 1\n{}", " ".repeat(2 << 20));
    let error = read(long.as_bytes()).map(|_| ()).expect_err("long");
    assert!(error.contains("longer than"), "{error}");
    assert!(read(format!("{head}{plain}").as_bytes()).is_ok());
}

/// A history beside another workload is part of it; what happened is then not what is simulated.
#[test]
fn what_happened_is_known_of_a_history_alone() {
    let text = written(&recorded(3, &mut |most| most / 3));
    let bytes = text.clone();
    let read_file = move |path: &Path| match path.to_str() {
        Some("h") => Ok(bytes.clone()),
        _ => Ok(b"1 0 0 60 4 -1 -1 1 120 -1 1 1 1 1 1 1 -1 -1\n".to_vec()),
    };
    let options = ReadOptions::default();
    let paths: [&Path; 2] = ["swf".as_ref(), "h".as_ref()];
    let both =
        tarn_spec::site::read_workloads(&paths, &machine(), &options, &read_file).expect("both");
    assert_eq!(both.workload.jobs.len(), 4);
    assert!(both.recorded.is_none());
    assert!(read(&text).expect("one").recorded.is_some());
}
