//! Outputs of real Slurm releases, recorded by `tests/cluster/record.sh`, are read as what was set up there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tarn_proto::site::{Excluded, PlacementAdvice};
use tarn_slurm::{
    Answers, NodeBase, NodeFlag, PartitionState, PendingReason, SlurmJob, SlurmJobState,
    SlurmSnapshot, job_change,
};

/// The folders of the recorded releases.
fn releases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let entries = std::fs::read_dir(&folder).expect("services/slurm/tests/recorded");
    let folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!folders.is_empty(), "{}", folder.display());
    folders
}

fn answers(folder: &Path, end: &str) -> Answers {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    Answers {
        read_at: 0,
        jobs: read(&format!("jobs.{end}")),
        excluded: read("excluded.txt"),
        wide_jobs: read("wide_jobs.txt"),
        wide_excluded: read("wide_excluded.txt"),
        nodes: read(&format!("nodes.{end}")),
        partitions: read("partitions.txt"),
        reservations: read("reservations.txt"),
        licences: read("licences.txt"),
        config: read("config.txt"),
    }
}

/// Each release from columns and from JSON.
fn snapshots() -> Vec<(String, SlurmSnapshot)> {
    let mut all = Vec::new();
    for folder in releases() {
        let name = folder.display();
        let fields = SlurmSnapshot::from_fields(&answers(&folder, "txt"));
        all.push((format!("{name}, fields"), fields.expect("fields")));
        let json = SlurmSnapshot::from_json(&answers(&folder, "json"));
        all.push((format!("{name}, JSON"), json.expect("JSON")));
    }
    all
}

/// The only job that this holds for.
fn the<'s>(of: &str, snapshot: &'s SlurmSnapshot, is: impl Fn(&SlurmJob) -> bool) -> &'s SlurmJob {
    let found: Vec<&SlurmJob> = snapshot.jobs.values().filter(|job| is(job)).collect();
    assert_eq!(found.len(), 1, "{of}: {found:#?}");
    found[0]
}

#[test]
fn both_forms_of_one_release_are_the_same_slurm() {
    for folder in releases() {
        let mut fields = SlurmSnapshot::from_fields(&answers(&folder, "txt")).unwrap();
        let mut json = SlurmSnapshot::from_json(&answers(&folder, "json")).unwrap();
        let numbers: BTreeSet<u32> = fields.jobs.keys().copied().collect();
        assert_eq!(numbers, json.jobs.keys().copied().collect());
        assert!(numbers.len() > 30, "{} jobs", numbers.len());
        for (number, job) in &mut fields.jobs {
            let other = json.jobs.get_mut(number).unwrap();
            // Columns have a reason's name or its text, JSON has both; JSON of 22.05 has no planned nodes.
            for job in [&mut *job, &mut *other] {
                job.planned = [].into();
                job.description.clear();
            }
            // The end of a job that waits follows from its planned start, which backfill changes meanwhile.
            if job.state == SlurmJobState::Pending {
                for job in [&mut *job, &mut *other] {
                    (job.start, job.end) = (None, None);
                }
            }
            assert_eq!(job, other, "{}", folder.display());
        }
        for (name, node) in &mut fields.nodes {
            let other = json.nodes.get_mut(name).expect(name);
            // Backfill plans nodes meanwhile.
            for node in [&mut *node, &mut *other] {
                node.state.flags.remove(&NodeFlag::Planned);
            }
            assert_eq!(node, other, "{}", folder.display());
        }
        assert_eq!(fields.nodes.len(), json.nodes.len());
    }
}

#[test]
fn jobs_wait_for_what_they_were_given() {
    for (of, snapshot) in snapshots() {
        let array = the(&of, &snapshot, |job| {
            job.array.as_ref().is_some_and(|a| a.tasks.contains('%'))
        });
        assert_eq!(array.array.as_ref().unwrap().tasks, "0,3,6,9%2", "{of}");
        assert_eq!(
            (array.priority, &array.reason),
            (0, &PendingReason::HeldByUser)
        );
        let dependent = the(&of, &snapshot, |job| job.dependency.starts_with("afterok:"));
        assert_eq!(dependent.reason, PendingReason::Dependency, "{of}");
        assert_eq!(dependent.eligible, None, "{of}");
        let later = the(&of, &snapshot, |job| job.reason == PendingReason::BeginTime);
        let submitted = later.submitted.unwrap();
        assert!(
            later.eligible.unwrap() >= submitted + 2 * 86_400 - 60,
            "{of}"
        );
        let licensed = the(&of, &snapshot, |job| job.licences.contains("viewer"));
        assert_eq!(licensed.licences, "solver:1,viewer:1", "{of}");
        assert_eq!(licensed.reason, PendingReason::Licences, "{of}");
        let solver = &snapshot.licences["solver"];
        assert_eq!((solver.total, solver.used), (4, 4), "{of}");
        let unavailable = the(&of, &snapshot, |job| job.required[..] == ["node6"]);
        let reason = &unavailable.reason;
        assert_eq!(*reason, PendingReason::RequiredNodeNotAvailable, "{of}");
        let many = the(&of, &snapshot, |job| {
            job.dependency.starts_with("afterany:")
        });
        assert_eq!(many.dependency.matches("afterany").count(), 13, "{of}");
        assert!(!many.is_incomplete && many.dependency.len() > 160, "{of}");
    }
}

#[test]
fn jobs_have_what_they_asked_for() {
    for (of, snapshot) in snapshots() {
        let excludes = the(&of, &snapshot, |job| job.excluded.len() == 2);
        assert_eq!(excludes.excluded[..], ["node1", "node3"], "{of}");
        let constrained = the(&of, &snapshot, |job| job.nice == 100);
        assert_eq!(constrained.partitions, ["short", "main"], "{of}");
        assert_eq!(
            (constrained.min_nodes, constrained.max_nodes),
            (1, 3),
            "{of}"
        );
        assert_eq!(constrained.features, "fast&big", "{of}");
        let endless = the(&of, &snapshot, |job| job.required[..] == ["node2"]);
        assert_eq!(endless.limit, None, "{of}");
        let exclusive = the(&of, &snapshot, |job| {
            job.is_exclusive && job.required[..] == ["node3"]
        });
        assert_eq!(exclusive.nodes[..], ["node3"], "{of}");
        let end = exclusive.start.map(|start| start + 1800);
        assert_eq!(exclusive.end, end, "{of}");
        let marked = the(&of, &snapshot, |job| !job.admin_comment.is_empty());
        assert_eq!(marked.admin_comment, "[tarn nice=5]", "{of}");
        assert_eq!(marked.preferred, "big", "{of}");
        let staged = the(&of, &snapshot, |job| job.has_burst_buffer);
        assert_eq!(staged.priority, 0, "{of}");
        let reserved = the(&of, &snapshot, |job| !job.reservation.is_empty());
        assert_eq!(reserved.reservation, "class", "{of}");
        let running = the(&of, &snapshot, |job| job.nodes.len() == 2);
        assert_eq!(running.state, SlurmJobState::Running, "{of}");
        assert_eq!(
            (running.limit, running.memory),
            (Some(3600), Some(400 << 20)),
            "{of}"
        );
        let het: Vec<_> = snapshot.jobs.values().filter_map(|job| job.het).collect();
        assert_eq!(
            het.iter().map(|h| h.offset).collect::<Vec<_>>(),
            [0, 1],
            "{of}"
        );
        // The numbers that names and comments of jobs are made to look like.
        for forged in 97..=99 {
            assert!(!snapshot.jobs.contains_key(&forged), "{of}");
        }
        assert!(snapshot.jobs.values().all(|job| job.user == 7001), "{of}");
    }
}

#[test]
fn nodes_and_partitions_are_as_they_were_set() {
    for (of, snapshot) in snapshots() {
        let names: Vec<&str> = snapshot.nodes.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["node1", "node2", "node3", "node4", "node5", "node6"]
        );
        let state = |name: &str| &snapshot.nodes[name].state;
        assert!(state("node5").flags.contains(&NodeFlag::Drain), "{of}");
        assert_eq!(state("node6").base, NodeBase::Down, "{of}");
        assert_eq!(state("node3").base, NodeBase::Allocated, "{of}");
        assert!(
            !state("node5").is_usable() && !state("node6").is_usable(),
            "{of}"
        );
        assert!(
            snapshot.nodes["node5"].reason.starts_with("disk | bad"),
            "{of}"
        );
        let node = &snapshot.nodes["node1"];
        assert_eq!(node.extra, "12G free | NodeName=node9", "{of}");
        assert_eq!((node.cpus, node.memory), (8, 4000 << 20), "{of}");
        assert_eq!(node.active_features, ["fast", "big"], "{of}");
        assert_eq!(node.partitions.len(), 2, "{of}");
        let short = &snapshot.partitions["short"];
        assert_eq!(
            (short.max_time, short.tier, short.nodes.len()),
            (Some(7200), 10, 2)
        );
        assert_eq!(snapshot.partitions["closed"].state, PartitionState::Down);
        assert!(snapshot.partitions["main"].is_default, "{of}");
        let upkeep = &snapshot.reservations["upkeep"];
        assert!(upkeep.flags.iter().any(|flag| flag == "MAINT") && !upkeep.is_active);
        assert_eq!(upkeep.end, upkeep.start.map(|start| start + 7200), "{of}");
        assert_eq!(snapshot.reservations["class"].users, ["alice"], "{of}");
        let settings = &snapshot.settings;
        assert_eq!(settings.scheduler_type, "sched/backfill", "{of}");
        assert_eq!(settings.min_job_age, Some(3600), "{of}");
        assert!(settings.boot_time.is_some(), "{of}");
    }
}

/// Bytes of a real output that are lost, or others in their place: an error or a snapshot, never a panic.
#[test]
fn a_damaged_output_does_not_panic() {
    let mut random = 1u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % below.max(1)
    };
    for folder in releases() {
        for turn in 0..60 {
            let end = if turn % 2 == 0 { "txt" } else { "json" };
            let mut answers = answers(&folder, end);
            for bytes in [
                &mut answers.jobs,
                &mut answers.nodes,
                &mut answers.excluded,
                &mut answers.partitions,
                &mut answers.reservations,
                &mut answers.config,
            ] {
                for _ in 0..4 {
                    let at = next(bytes.len());
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = u8::try_from(next(256)).unwrap();
                    }
                }
                if turn % 3 == 0 {
                    bytes.truncate(next(bytes.len()));
                }
            }
            let _ = SlurmSnapshot::from_fields(&answers);
            let _ = SlurmSnapshot::from_json(&answers);
        }
    }
}

#[test]
fn nodes_are_excluded_only_where_slurm_does_not_exclude_them_yet() {
    for (name, snapshot) in snapshots() {
        let mut jobs = snapshot.jobs.values();
        let job = jobs.find(|job| job.state.is_waiting() && !job.excluded.is_empty());
        let job = job.unwrap_or_else(|| panic!("{name}: no waiting job excludes nodes"));
        let now = job.excluded.to_vec();
        let exclusion = |own: &[String]| tarn_slurm::exclusion(&snapshot, job.number, own, &[]);
        assert_eq!(exclusion(&now), None, "{name}");
        assert_eq!(exclusion(&[]), Some(BTreeSet::new()), "{name}");
        let running = snapshot.jobs.values().find(|job| !job.nodes.is_empty());
        let running = running
            .unwrap_or_else(|| panic!("{name}: no job runs"))
            .number;
        assert_eq!(
            tarn_slurm::exclusion(&snapshot, running, &now, &[]),
            None,
            "{name}"
        );
        assert!(
            tarn_slurm::held_without_nodes(&snapshot).is_empty(),
            "{name}"
        );
    }
}

#[test]
fn advice_is_one_change_of_a_job() {
    for (name, snapshot) in snapshots() {
        let is_free = |job: &&SlurmJob| {
            job.state.is_waiting()
                && !job.is_incomplete
                && job.dependency.is_empty()
                && job.required.is_empty()
                && job.preferred.is_empty()
                && job.excluded.is_empty()
                && job.min_nodes == 1
        };
        let job = snapshot.jobs.values().find(is_free);
        let job = job.unwrap_or_else(|| panic!("{name}: no waiting job without conditions"));
        let usable = snapshot.nodes.values().find(|node| {
            node.state.is_usable() && job.partitions.iter().any(|p| node.partitions.contains(p))
        });
        let node = usable.unwrap_or_else(|| panic!("{name}: no usable node"));
        let advice = PlacementAdvice {
            prefer: vec![node.name.clone()],
            after: vec![7, 8],
            exclude: Some(Excluded::default()),
            ..PlacementAdvice::default()
        };
        let change = job_change(&snapshot, job.number, &advice).expect("it waits");
        let after = "dependency=afterok:7,afterburstbuffer:7,afterok:8,afterburstbuffer:8";
        let prefer = format!("prefer={}", node.name);
        assert_eq!(change.update.words, [after.to_owned(), prefer], "{name}");
        assert_eq!(
            change.update.unnamed.is_empty(),
            node.features.contains(&node.name)
        );
        assert_eq!(change.expected[..], [&node.name[..]], "{name}");
        // The nodes that its user excludes stay excluded; a job that runs is not changed.
        let advice = PlacementAdvice {
            exclude: Some(Excluded {
                own: vec!["elsewhere".into()],
                full: Vec::new(),
            }),
            ..PlacementAdvice::default()
        };
        let change = job_change(&snapshot, job.number, &advice).expect("it waits");
        assert_eq!(change.update.words, ["excnodelist=elsewhere"], "{name}");
        let running = snapshot.jobs.values().find(|job| !job.nodes.is_empty());
        let running = running
            .unwrap_or_else(|| panic!("{name}: no job runs"))
            .number;
        assert_eq!(job_change(&snapshot, running, &advice), None, "{name}");
    }
}
