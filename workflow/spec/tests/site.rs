//! The machines and workloads that files become.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use tarn_spec::SpecError;
use tarn_spec::site::{DataModel, Loaded, ReadOptions, SubmitWay, parse_machine, read_workload};
use tarn_types::id::NodeId;
use tarn_types::site::{Machine, Mode, Spread, Submit, WorkJob};
use tarn_types::units::SECOND;

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(path)
}

fn machine_of(path: &str) -> Machine {
    let text = std::fs::read_to_string(example(path)).expect(path);
    parse_machine(path, &text).expect(path)
}

/// Eight nodes; alone a job reads and writes 1 GB/s a node.
fn machine() -> Machine {
    let text = "[external]\nclient-read = '1 GB/s'\nclient-write = '1 GB/s'\n[[island]]\nnodes = 8\ncores = 4\n";
    parse_machine("cluster.toml", text).expect("a machine")
}

/// Reads the first of some files in memory, which may name the others.
fn load(files: &[(&str, &[u8])], options: &ReadOptions) -> Result<Loaded, SpecError> {
    let first = Path::new(files[0].0);
    let files: BTreeMap<PathBuf, &[u8]> =
        files.iter().map(|(p, b)| (PathBuf::from(p), *b)).collect();
    let read = |path: &Path| match files.get(path) {
        Some(bytes) => Ok(bytes.to_vec()),
        None => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    read_workload(first, &machine(), options, &read)
}

fn loaded(text: &str) -> Loaded {
    load(&[("main", text.as_bytes())], &ReadOptions::default()).expect(text)
}

fn packed(text: &str) -> Vec<u8> {
    use io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text.as_bytes()).expect("memory");
    packer.finish().expect("memory")
}

fn job<'l>(loaded: &'l Loaded, name: &str) -> &'l WorkJob {
    let found = loaded.workload.jobs.iter().find(|j| &*j.name == name);
    found.unwrap_or_else(|| panic!("no job {name}"))
}

/// Names of the items that a job reads and writes.
fn data_of<'l>(loaded: &'l Loaded, name: &str) -> (Vec<&'l str>, Vec<&'l str>) {
    let job = &job(loaded, name).job;
    let item = |at: usize| &*loaded.workload.items[at].name;
    let reads = job.reads.iter().map(|r| item(r.item.at())).collect();
    (reads, job.writes.iter().map(|w| item(w.at())).collect())
}

#[test]
fn the_example_machines() {
    let machine = machine_of("machines/nextgenio.toml");
    assert_eq!(machine.nodes(), 34);
    assert_eq!(machine.node_name(NodeId(33)), "nextgenio-cn33");
    let kind = &machine.islands[0].kind;
    assert_eq!((kind.cores, kind.sockets, kind.memory), (48, 2, 192 << 30));
    assert!(kind.tiers[0].app_direct && kind.tiers[0].capacity == 3_000_000_000_000);
    assert_eq!(kind.mode_change.map(|c| c.time), Some(600 * SECOND));
    let machine = machine_of("machines/ten-thousand.toml");
    assert_eq!((machine.nodes(), machine.islands.len()), (10_000, 2));
    assert!(machine.islands[1].kind.tiers.is_empty());
    let machine = machine_of("machines/eight-nodes.toml");
    assert_eq!(machine.store.saturates, 4);
    assert_eq!(machine.islands[0].kind.power.idle, 120.0);
    assert_eq!(machine_of("machines/kth-sp2.toml").nodes(), 100);
}

#[test]
fn what_a_machine_does_not_say_is_no_limit() {
    let machine = parse_machine("c", "island = [{ nodes = 2, cores = 3 }]").expect("the least");
    assert_eq!(
        (machine.name.as_str(), machine.store.saturates),
        ("cluster", 1)
    );
    assert_eq!(
        (machine.store.rates.read, machine.store.client.write),
        (0, 0)
    );
    let kind = &machine.islands[0].kind;
    assert!(kind.memory >= 1 << 60 && kind.tiers.is_empty() && kind.mode_change.is_none());
    assert_eq!((kind.sockets, kind.gpus, kind.mode), (1, 0, Mode::OneLevel));
    assert_eq!(machine.node_name(NodeId(1)), "node1");
}

#[test]
fn table_4() {
    let machine = machine_of("weiland-table4/cluster.toml");
    let path = example("weiland-table4/workload.toml");
    let loaded = read_workload(&path, &machine, &ReadOptions::default(), &|p: &Path| {
        std::fs::read(p)
    })
    .expect("read");
    let names: Vec<&str> = loaded.workload.jobs.iter().map(|j| &*j.name).collect();
    assert_eq!(
        names,
        ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
        "the order of the queue"
    );
    let flows: Vec<&str> = loaded
        .workload
        .flows
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(flows, ["1-7-9"]);
    for job in &loaded.workload.jobs {
        // Equation 5: T_run is T_compute and T_I/O, at 1 GB/s a node.
        let bytes = |at: usize| loaded.workload.items[at].bytes;
        let read: u64 = job.job.reads.iter().map(|r| bytes(r.item.at())).sum();
        let written: u64 = job.job.writes.iter().map(|w| bytes(w.at())).sum();
        let io = (read + written) / u64::from(job.job.nodes);
        assert_eq!(job.job.limit, job.compute + io, "job {}", job.name);
        assert_eq!(job.submit, Submit::At(0));
        assert_eq!(
            job.job.flow.is_some(),
            ["1", "7", "9"].contains(&&*job.name)
        );
    }
    assert_eq!(
        data_of(&loaded, "7"),
        (vec!["from-1"], vec!["from-7", "rest-of-7"])
    );
    assert_eq!(data_of(&loaded, "9"), (vec!["from-7"], vec!["out-9"]));
    assert!(
        loaded.notes.len() == 1 && loaded.notes[0].contains("rest-of-7"),
        "{:?}",
        loaded.notes
    );
}

/// One line of a trace: submit, run, allocated, requested, time, status.
fn line(
    submit: &str,
    run: &str,
    allocated: &str,
    requested: &str,
    time: &str,
    status: &str,
) -> String {
    format!(
        "1 {submit} -1 {run} {allocated} -1 -1 {requested} {time} -1 {status} 1 1 -1 -1 -1 -1 -1\n"
    )
}

#[test]
fn lines_of_a_trace() {
    let trace = [
        "; a header\n\n".to_owned(),
        line("100", "60", "2", "-1", "300", "1"),
        line("110.5", "60", "2", "4", "30", "0"),
        line("120", "0", "1", "1", "-1", "5").replace(" 0 1 -1", " 7 1 -1"),
    ];
    let loaded = loaded(&trace.concat());
    let jobs = &loaded.workload.jobs;
    assert_eq!(jobs.len(), 3);
    assert_eq!(
        (jobs[0].submit, jobs[0].job.nodes, jobs[0].compute),
        (Submit::At(0), 2, 60 * SECOND)
    );
    assert_eq!(
        (jobs[0].job.limit, jobs[0].job.expect, jobs[0].job.cores),
        (300 * SECOND, 300 * SECOND, 0)
    );
    assert_eq!(
        (jobs[1].submit, jobs[1].job.nodes),
        (Submit::At(21 * SECOND / 2), 4),
        "requested goes first"
    );
    assert_eq!(
        (jobs[1].job.limit, jobs[1].compute),
        (30 * SECOND, 60 * SECOND),
        "longer than its limit"
    );
    assert_eq!(jobs[2].job.limit, 7 * SECOND, "no requested time");
    assert!(
        loaded.notes[0].contains("1 jobs have no requested time"),
        "{:?}",
        loaded.notes
    );
    assert!(loaded.workload.skipped.is_empty());
}

#[test]
fn odd_lines_are_counted() {
    let good = line("100", "60", "2", "2", "300", "1");
    let odd = [
        (line("100", "-1", "2", "2", "300", "1"), "run time"),
        (
            line("-1", "60", "2", "2", "300", "1"),
            "submit time is negative",
        ),
        (line("100", "60", "-1", "-1", "300", "1"), "no processors"),
        (line("100", "60", "0", "0", "300", "1"), "no processors"),
        (line("100", "60", "9", "9", "300", "1"), "more nodes"),
        (
            line("100", "-1", "-1", "2", "300", "5"),
            "cancelled before it began",
        ),
        (line("100", "60", "2", "2", "300", "2"), "part of a job"),
        (line("100", "60", "2", "2", "300", "7"), "status is unknown"),
        (
            line("100", "60", "2", "2", "300", "-1"),
            "status is unknown",
        ),
        (
            line("100", "60", "2", "2", "300", "0.5"),
            "status is unknown",
        ),
        (
            line("99", "60", "2", "2", "300", "1"),
            "before the line above",
        ),
        (line("1e11", "60", "2", "2", "300", "1"), "too large"),
        (line("100", "x", "2", "2", "300", "1"), "not a number"),
        (line("100", "nan", "2", "2", "300", "1"), "not a number"),
        ("1 2 3\n".to_owned(), "not 18 fields"),
        (good.replace('\n', " 19\n"), "not 18 fields"),
        ("\u{fffd}\n".to_owned(), "not a number"),
    ];
    for (line, why) in odd {
        let loaded = loaded(&format!("{good}{line}{line}{good}"));
        assert_eq!(loaded.workload.jobs.len(), 2, "{line}");
        let [skipped] = &loaded.workload.skipped[..] else {
            panic!("{line}: {:?}", loaded.workload.skipped);
        };
        assert!(skipped.why.contains(why), "{line}: {}", skipped.why);
        assert_eq!(
            (skipped.count, skipped.first_line, skipped.file.as_str()),
            (2, 2, "main")
        );
    }
}

#[test]
fn a_trace_of_nothing_usable_says_why() {
    let trace = line("1", "60", "2", "2", "300", "-1");
    let rejected =
        load(&[("main", trace.as_bytes())], &ReadOptions::default()).expect_err("nothing");
    assert!(
        rejected.to_string().contains("status is unknown"),
        "{rejected}"
    );
    let mut options = ReadOptions::default();
    options.trace.unknown_status = true;
    let loaded = load(&[("main", trace.as_bytes())], &options).expect("used");
    assert_eq!(loaded.workload.jobs.len(), 1);
}

#[test]
fn modelled_data_is_a_part_of_the_run_time() {
    let lines: String = (0..500)
        .map(|i| line(&i.to_string(), "1000", "2", "2", "2000", "1"))
        .collect();
    let mut options = ReadOptions::default();
    options.trace.data = Some(DataModel {
        seed: 3,
        jobs: 0.5,
        io: 0.4,
    });
    let read = |options: &ReadOptions| {
        load(&[("main", &packed(&lines))], options)
            .expect("a trace")
            .workload
    };
    let workload = read(&options);
    let with_data = workload
        .jobs
        .iter()
        .filter(|j| !j.job.reads.is_empty())
        .count();
    assert!((200..300).contains(&with_data), "{with_data}");
    for job in &workload.jobs {
        let bytes = |at: usize| workload.items[at].bytes;
        let read: u64 = job.job.reads.iter().map(|r| bytes(r.item.at())).sum();
        let written: u64 = job.job.writes.iter().map(|w| bytes(w.at())).sum();
        // Two nodes at 1 GB/s: half a nanosecond a byte, rounded up once for each direction.
        let run = job.compute + read.div_ceil(2) + written.div_ceil(2);
        assert_eq!(run, 1000 * SECOND);
        assert!(
            job.job
                .reads
                .iter()
                .all(|r| workload.items[r.item.at()].item.outside)
        );
        assert!(
            job.job
                .writes
                .iter()
                .all(|w| workload.items[w.at()].item.keep)
        );
    }
    let sizes =
        |w: &tarn_types::site::Workload| w.items.iter().map(|i| i.bytes).collect::<Vec<_>>();
    assert_eq!(sizes(&workload), sizes(&read(&options)), "the same seed");
    options.trace.max_jobs = 100;
    let fewer = sizes(&read(&options));
    assert!(
        !fewer.is_empty() && sizes(&workload).starts_with(&fewer),
        "the first jobs stay as they are"
    );
    options.trace.data = options.trace.data.map(|d| DataModel { seed: 4, ..d });
    assert_ne!(fewer, sizes(&read(&options)), "another seed");
}

/// Two producers, a join; `raw` is read by both, `a1` and `a2` always go together, `left` is read by nobody.
const INSTANCE: &str = r#"{ "name": "i", "schemaVersion": "1.5", "workflow": {
  "specification": {
    "tasks": [
      { "id": "A", "name": "A", "parents": [], "children": ["C"], "inputFiles": ["raw"], "outputFiles": ["a1", "a2", "left"] },
      { "id": "B", "name": "B", "parents": [], "children": ["C", "D"], "inputFiles": ["raw"], "outputFiles": ["b"] },
      { "id": "C", "name": "C", "parents": ["A", "B"], "children": [], "inputFiles": ["a2", "b", "a1"], "outputFiles": ["c"] },
      { "id": "D", "name": "D", "parents": [], "children": [] }
    ],
    "files": [
      { "id": "raw", "sizeInBytes": 1000000000 }, { "id": "a1", "sizeInBytes": 5 }, { "id": "a2", "sizeInBytes": 6 },
      { "id": "left", "sizeInBytes": 7 }, { "id": "b", "sizeInBytes": 0 }, { "id": "c", "sizeInBytes": 9 },
      { "id": "unused", "sizeInBytes": 1 }
    ] },
  "execution": { "makespanInSeconds": 1, "executedAt": "x", "tasks": [
      { "id": "A", "runtimeInSeconds": 2.5, "coreCount": 1.5, "memoryInBytes": 1024 }, { "id": "B", "runtimeInSeconds": 1 },
      { "id": "C", "runtimeInSeconds": 0 }, { "id": "D", "runtimeInSeconds": 1 } ] } } }"#;

#[test]
fn files_that_go_together_are_one_item() {
    let loaded = loaded(INSTANCE);
    let items: Vec<(&str, u64, bool, bool)> = loaded
        .workload
        .items
        .iter()
        .map(|i| (&*i.name, i.bytes, i.item.outside, i.item.keep))
        .collect();
    let expected = [
        ("raw", 1_000_000_000, true, false),
        ("a1 and 1 more", 11, false, false),
        ("left", 7, false, true),
        ("b", 0, false, false),
        ("c", 9, false, true),
    ];
    assert_eq!(items, expected);
    assert_eq!(
        data_of(&loaded, "A"),
        (vec!["raw"], vec!["a1 and 1 more", "left"])
    );
    assert_eq!(
        data_of(&loaded, "C"),
        (vec!["a1 and 1 more", "b"], vec!["c"])
    );
    let a = job(&loaded, "A");
    assert_eq!(
        (a.job.cores, a.job.memory, a.compute),
        (2, 1024, 5 * SECOND / 2)
    );
    assert_eq!(
        a.job.limit,
        2 * (5 * SECOND / 2 + SECOND + 18),
        "twice with its reading and writing"
    );
    assert!(
        job(&loaded, "C").job.after.is_empty(),
        "files explain both parents"
    );
    assert_eq!(
        job(&loaded, "D").job.after,
        [tarn_types::site::JobId(1)],
        "only the list of children does"
    );
    assert_eq!(loaded.workload.flows[0].name, "main");
}

#[test]
fn version_1_4_has_files_in_its_tasks() {
    let text = r#"{ "name": "o", "schemaVersion": "1.4", "workflow": { "makespanInSeconds": 1, "tasks": [
      { "name": "A", "id": "ID1", "type": "compute", "runtimeInSeconds": 1, "cores": 1, "parents": [],
        "files": [ { "link": "input", "name": "raw", "sizeInBytes": 3 }, { "link": "output", "name": "a", "sizeInBytes": 4 } ] },
      { "name": "B", "id": "ID2", "type": "compute", "runtimeInSeconds": 1, "parents": ["ID1"],
        "files": [ { "link": "input", "name": "a", "sizeInBytes": 5 }, { "link": "input", "name": "a", "sizeInBytes": 5 } ] } ] } }"#;
    let loaded = loaded(text);
    assert_eq!(data_of(&loaded, "B"), (vec!["a"], vec![]));
    assert_eq!(loaded.workload.items[1].bytes, 5);
    assert!(
        loaded.notes[0].contains("another size"),
        "{:?}",
        loaded.notes
    );
}

#[test]
fn the_three_ways_to_submit() {
    let read = |way| {
        let mut options = ReadOptions::default();
        options.flow.submit = way;
        options.flow.bytes_scale = 2.0;
        options.flow.time_scale = 10.0;
        options.arrives = 9;
        load(&[("main", INSTANCE.as_bytes())], &options).expect("an instance")
    };
    let all = read(SubmitWay::Dependencies);
    assert!(all.workload.jobs.iter().all(|j| j.submit == Submit::At(9)));
    assert_eq!(
        (job(&all, "A").compute, all.workload.items[0].bytes),
        (25 * SECOND, 2_000_000_000)
    );
    let chain = read(SubmitWay::Chain);
    let submits: Vec<Submit> = chain.workload.jobs.iter().map(|j| j.submit).collect();
    let after = |j| Submit::After(tarn_types::site::JobId(j));
    assert_eq!(submits, [Submit::At(9), after(0), after(1), after(2)]);
    assert!(
        chain
            .workload
            .items
            .iter()
            .all(|i| i.item.keep != i.item.outside),
        "all goes outside"
    );
    let script = read(SubmitWay::Script);
    let jobs = &script.workload.jobs;
    let sum: u64 = all.workload.jobs.iter().map(|j| j.job.limit).sum();
    assert_eq!(
        (jobs[0].job.limit, jobs[0].job.cores, jobs[0].job.continues),
        (sum, 2, None)
    );
    assert!(
        jobs[1..]
            .iter()
            .all(|j| j.job.continues == Some(tarn_types::site::JobId(0)))
    );
}

const STEPS: &str = r#"
name = "steps"
[data.raw]
source = "/in"
size = "10 B"
[data.made]
size = "9 B"
[data.sum]
dest = "/out"
[[step]]
name = "each"
foreach = "raw/*"
max = 3
run = "x"
time = "20s"
in = ["raw/{item}"]
out = ["made"]
[[step]]
name = "join"
nodes = 2
run = "y"
in = ["made", "raw"]
out = ["sum:scatter"]
"#;

#[test]
fn workflow_files_of_tarn() {
    let text = STEPS.replace("[data.sum]", "[data.sum]\nscatter = \"r{rank}\"");
    let loaded = loaded(&text);
    let names: Vec<&str> = loaded.workload.jobs.iter().map(|j| &*j.name).collect();
    assert_eq!(names, ["each[0]", "each[1]", "each[2]", "join"]);
    assert_eq!(data_of(&loaded, "each[1]"), (vec!["raw.1"], vec!["made.1"]));
    let (reads, writes) = data_of(&loaded, "join");
    assert_eq!(
        reads,
        ["raw.0", "raw.1", "raw.2", "made.0", "made.1", "made.2"]
    );
    assert_eq!(writes, ["sum"]);
    assert!(
        job(&loaded, "join")
            .job
            .reads
            .iter()
            .all(|r| r.spread == Spread::Whole)
    );
    let bytes: Vec<u64> = loaded.workload.items.iter().map(|i| i.bytes).collect();
    assert_eq!(bytes, [4, 3, 3, 3, 3, 3, 1 << 20], "shares add up");
    let each = job(&loaded, "each[0]");
    assert_eq!((each.job.limit, each.compute), (20 * SECOND, 10 * SECOND));
    assert!(loaded.workload.items[6].item.keep);
    for part in [
        "no `time`: `join`",
        "no `size`",
        "1/2 of their `time`",
        "`each` is assumed to have 3 instances",
    ] {
        assert!(
            loaded.notes.iter().any(|n| n.contains(part)),
            "{part}: {:?}",
            loaded.notes
        );
    }
}

#[test]
fn a_mix() {
    let trace = line("50", "60", "4", "4", "300", "1").repeat(3);
    let mix = r#"
[data.in]
size = "1 GB"
outside = true
spread = "whole"
[[job]]
compute = "1m"
nodes = 2
cores = 3
memory = "1 GiB"
gpus = 1
mode = "2lm"
in = ["in"]
arrives = "5s"
[[trace]]
file = "sub/t.swf.gz"
arrives = "1m"
max-jobs = 2
procs-per-node = 2
[[workflow]]
file = "i.json"
name = "w"
every = "10s"
count = 3
seed = 5
"#;
    let files = [
        ("main.toml", mix.as_bytes()),
        ("sub/t.swf.gz", &packed(&trace)),
        ("i.json", INSTANCE.as_bytes()),
    ];
    let loaded = load(&files, &ReadOptions::default()).expect("a mix");
    let jobs = &loaded.workload.jobs;
    assert_eq!(jobs.len(), 1 + 2 + 3 * 4);
    let first = &jobs[0].job;
    assert_eq!(
        (first.nodes, first.cores, first.memory, first.gpus),
        (2, 3, 1 << 30, 1)
    );
    assert_eq!(
        (first.mode, first.reads[0].spread),
        (Some(Mode::TwoLevel), Spread::Whole)
    );
    assert_eq!(
        (jobs[0].submit, first.limit),
        (Submit::At(5 * SECOND), 61 * SECOND)
    );
    assert_eq!(
        (jobs[1].submit, jobs[1].job.nodes),
        (Submit::At(60 * SECOND), 2)
    );
    let flows: Vec<&str> = loaded
        .workload
        .flows
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(flows, ["w-1", "w-2", "w-3"]);
    let arrives: Vec<u64> = loaded.workload.flows.iter().map(|f| f.arrives).collect();
    assert!(
        arrives[0] == 0 && arrives[0] < arrives[1] && arrives[1] < arrives[2],
        "{arrives:?}"
    );
    for (flow, jobs) in jobs[3..].chunks(4).enumerate() {
        assert!(jobs.iter().all(|j| j.submit == Submit::At(arrives[flow])));
        let c = &jobs[2].job;
        let items = &loaded.workload.items;
        assert_eq!(&*items[c.writes[0].at()].name, "c", "numbers are shifted");
        let (b, b_id) = (&jobs[1].job, jobs[3].job.after[0]);
        assert_eq!(b.flow, c.flow);
        assert_eq!(&*loaded.workload.jobs[b_id.at()].name, "B");
    }
}

#[test]
fn data_is_not_modelled_without_rates() {
    let machine = parse_machine("c", "island = [{ nodes = 2, cores = 3 }]").expect("the least");
    let trace = line("1", "60", "2", "2", "300", "1");
    let mut options = ReadOptions::default();
    options.trace.data = Some(DataModel {
        seed: 1,
        jobs: 1.0,
        io: 0.5,
    });
    let read = |_: &Path| Ok(trace.clone().into_bytes());
    let rejected = read_workload(Path::new("t"), &machine, &options, &read).expect_err("no rates");
    assert!(
        rejected.to_string().contains("external store has no rates"),
        "{rejected}"
    );
}

#[test]
fn the_montage_example() {
    let path = example("montage/workflow.toml");
    let mix = format!("[[workflow]]\nfile = '{}'\nentries = 16\n", path.display());
    let read = |p: &Path| match p.ends_with("mix") {
        true => Ok(mix.clone().into_bytes()),
        false => std::fs::read(p),
    };
    let loaded = read_workload(Path::new("mix"), &machine(), &ReadOptions::default(), &read)
        .expect("an example");
    let names: Vec<&str> = loaded.workload.jobs.iter().map(|j| &*j.name).collect();
    assert!(
        names.contains(&"header") && names.contains(&"project[0]"),
        "{names:?}"
    );
    let tile = data_of(&loaded, "project[1]").0;
    assert!(
        tile.contains(&"raw.1") && !tile.contains(&"raw.0"),
        "{tile:?}"
    );
    assert_eq!(
        loaded.workload.items.iter().filter(|i| i.item.keep).count(),
        2,
        "mosaic and picture"
    );
}
