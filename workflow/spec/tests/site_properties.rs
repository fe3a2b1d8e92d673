//! Any file of a site is read or refused, without a panic, and nothing is lost or counted twice.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use tarn_spec::SpecError;
use tarn_spec::site::{DataModel, Loaded, ReadOptions, SubmitWay, parse_machine, read_workload};
use tarn_types::site::{Machine, Submit, Workload};

fn machine() -> Machine {
    let text = "[external]\nread = '9 GB/s'\nwrite = '7 GB/s'\nclient-read = '1 GB/s'\n[[island]]\nnodes = 8\ncores = 4\n";
    parse_machine("cluster.toml", text).expect("a machine")
}

fn read(bytes: &[u8], options: &ReadOptions) -> Result<Loaded, SpecError> {
    let file = |path: &Path| match path.to_str() {
        Some("file") => Ok(bytes.to_vec()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    read_workload(Path::new("file"), &machine(), options, &file)
}

fn with_data(way: SubmitWay) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.flow.submit = way;
    options.trace.data = Some(DataModel {
        seed: 1,
        jobs: 0.7,
        io: 0.5,
    });
    options
}

/// The properties on which all users of a workload rely.
fn check(workload: &Workload) -> Result<(), TestCaseError> {
    let mut writers = BTreeMap::new();
    for (at, work) in workload.jobs.iter().enumerate() {
        let job = &work.job;
        prop_assert!(job.nodes >= 1 && job.expect <= job.limit && job.limit > 0);
        let longest = 1_000_000_000 * tarn_types::units::SECOND;
        prop_assert!(
            job.limit <= longest && work.compute <= longest,
            "sums of times fit into 64 bits"
        );
        prop_assert!(job.flow.is_none_or(|f| f.at() < workload.flows.len()));
        for write in &job.writes {
            prop_assert!(!workload.items[write.at()].item.outside);
            prop_assert!(writers.insert(*write, at).is_none(), "one writer");
        }
    }
    for (at, work) in workload.jobs.iter().enumerate() {
        for read in &work.job.reads {
            let outside = workload.items[read.item.at()].item.outside;
            prop_assert!(
                outside != writers.contains_key(&read.item),
                "comes from one place"
            );
        }
        let writers = work
            .job
            .reads
            .iter()
            .filter_map(|r| writers.get(&r.item).copied());
        for other in writers.chain(work.job.after.iter().map(|j| j.at())) {
            prop_assert!(other != at && workload.jobs[other].job.flow == work.job.flow);
        }
        if let Submit::After(other) = work.submit {
            prop_assert!(other.at() < workload.jobs.len() && other.at() != at);
        }
    }
    Ok(())
}

/// A field of a trace: mostly sensible.
fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0u32..12).prop_map(|n| n.to_string()),
        2 => (-2i64..1_000_000).prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_map(|n| n.to_string()),
        1 => "[ -~]{0,6}",
    ]
}

fn trace_line() -> impl Strategy<Value = String> {
    (prop::collection::vec(field(), 17..20), 0u32..4).prop_map(|(mut fields, sane)| {
        if sane > 0 {
            fields.truncate(18);
            if let Some(status) = fields.get_mut(10) {
                *status = "1".into();
            }
        }
        fields.join(" ")
    })
}

/// A recorded workflow: for each task the files it reads, by number, and how many it writes.
type Recorded = Vec<(Vec<usize>, usize)>;

fn recorded() -> impl Strategy<Value = Recorded> {
    prop::collection::vec((prop::collection::vec(0usize..24, 0..5), 0usize..4), 1..9)
}

/// The files that a task reads and those that it writes.
type Uses = (BTreeSet<usize>, BTreeSet<usize>);

/// The document, and of each task the files it reads and writes. Files 0 to 3 come from outside; a task reads only what
/// tasks before it have written.
fn document(recorded: &Recorded) -> (String, Vec<Uses>) {
    let mut files = 4;
    let mut uses = Vec::new();
    for (reads, writes) in recorded {
        let reads: BTreeSet<usize> = reads.iter().map(|r| r % files).collect();
        uses.push((reads, (files..files + writes).collect::<BTreeSet<usize>>()));
        files += writes;
    }
    let list = |set: &BTreeSet<usize>| {
        let names: Vec<String> = set.iter().map(|f| format!("\"f{f}\"")).collect();
        names.join(",")
    };
    let tasks: Vec<String> = uses
        .iter()
        .enumerate()
        .map(|(t, (r, w))| {
            format!(
                r#"{{"id":"t{t}","inputFiles":[{}],"outputFiles":[{}]}}"#,
                list(r),
                list(w)
            )
        })
        .collect();
    let sizes: Vec<String> = (0..files)
        .map(|f| format!(r#"{{"id":"f{f}","sizeInBytes":{}}}"#, 1u64 << f))
        .collect();
    let runs: Vec<String> = (0..uses.len())
        .map(|t| format!(r#"{{"id":"t{t}","runtimeInSeconds":{t}}}"#))
        .collect();
    let text = format!(
        r#"{{"schemaVersion":"1.5","workflow":{{"specification":{{"tasks":[{}],"files":[{}]}},"execution":{{"tasks":[{}]}}}}}}"#,
        tasks.join(","),
        sizes.join(","),
        runs.join(",")
    );
    (text, uses)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes, &with_data(SubmitWay::Script));
        let mut packed = vec![0x1f, 0x8b];
        packed.extend_from_slice(&bytes);
        let _ = read(&packed, &with_data(SubmitWay::Chain));
        let _ = parse_machine("file", &String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn text_never_panics(text in "[-;{\\[ ]\\PC{0,200}", toml in "(\\[\\[?(job|trace|workflow|data\\.x|island)\\]?\\]\n|(in|out|size|nodes|compute|after|every) = (\"x\"|\"1 s\"|\"1 B\"|\\[\\]|-1|9e99)\n){0,8}") {
        for text in [&text, &toml] {
            if let Ok(loaded) = read(text.as_bytes(), &with_data(SubmitWay::Dependencies)) {
                check(&loaded.workload)?;
            }
            let _ = parse_machine("file", text);
        }
    }

    #[test]
    fn every_line_of_a_trace_is_used_or_counted(lines in prop::collection::vec(trace_line(), 1..20)) {
        let text = format!("; header\n{}\n", lines.join("\n"));
        let of_data = lines.iter().filter(|l| !l.trim().is_empty() && !l.trim().starts_with(';')).count() as u64;
        if let Ok(loaded) = read(text.as_bytes(), &with_data(SubmitWay::Dependencies)) {
            check(&loaded.workload)?;
            let skipped: u64 = loaded.workload.skipped.iter().map(|s| s.count).sum();
            prop_assert_eq!(loaded.workload.jobs.len() as u64 + skipped, of_data);
            let first = loaded.workload.jobs.first().map(|j| j.submit);
            prop_assert_eq!(first, Some(Submit::At(0)));
            let time = |j: &tarn_types::site::WorkJob| match j.submit {
                Submit::At(time) => time,
                Submit::After(_) => u64::MAX,
            };
            let sorted = loaded.workload.jobs.is_sorted_by_key(time);
            prop_assert!(sorted);
        }
    }

    /// The sizes are powers of two, so that a sum shows which files are in it.
    #[test]
    fn items_hold_every_file_once(recorded in recorded()) {
        let (text, uses) = document(&recorded);
        let loaded = read(text.as_bytes(), &ReadOptions::default());
        let workload = loaded.map_err(|e| TestCaseError::fail(e.to_string()))?.workload;
        check(&workload)?;
        let sum = |files: &BTreeSet<usize>| files.iter().map(|f| 1u64 << f).sum::<u64>();
        let mut seen = BTreeSet::new();
        for item in &workload.items {
            prop_assert!(item.bytes > 0 && seen.is_disjoint(&BTreeSet::from([item.bytes])));
            seen.insert(item.bytes);
        }
        for (job, (reads, writes)) in workload.jobs.iter().zip(&uses) {
            let read: u64 = job.job.reads.iter().map(|r| workload.items[r.item.at()].bytes).sum();
            let written: u64 = job.job.writes.iter().map(|w| workload.items[w.at()].bytes).sum();
            prop_assert_eq!((read, written), (sum(reads), sum(writes)));
        }
        // No two items could be one.
        let mut users = BTreeSet::new();
        for item in 0..workload.items.len() {
            let using = |at: usize| {
                let job = &workload.jobs[at].job;
                (job.reads.iter().any(|r| r.item.at() == item), job.writes.iter().any(|w| w.at() == item))
            };
            let users_of: Vec<(bool, bool)> = (0..workload.jobs.len()).map(using).collect();
            prop_assert!(users.insert(users_of), "two items with the same writer and readers");
        }
    }

    #[test]
    fn a_damaged_instance_never_panics(recorded in recorded(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let (text, _) = document(&recorded);
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = byte;
        }
        for way in [SubmitWay::Dependencies, SubmitWay::Chain, SubmitWay::Script] {
            if let Ok(loaded) = read(&bytes, &with_data(way)) {
                check(&loaded.workload)?;
            }
        }
    }
}

#[test]
fn a_cut_archive_is_said_to_be_cut() {
    use io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let line = |i: u64| {
        format!(
            "{i} {} -1 {} 1 -1 -1 1 99 -1 1 1 1 -1 -1 -1 -1 -1\n",
            i * 7,
            i * i * 31 % 97
        )
    };
    let text: String = (0..20_000).map(line).collect();
    packer.write_all(text.as_bytes()).expect("memory");
    let packed = packer.finish().expect("memory");
    let all = read(&packed, &ReadOptions::default()).expect("whole");
    assert_eq!(all.workload.jobs.len(), 20_000);
    let cut = read(&packed[..packed.len() / 2], &ReadOptions::default()).expect_err("cut");
    assert!(
        cut.to_string()
            .contains("file: the trace cannot be read to its end"),
        "{cut}"
    );
}
