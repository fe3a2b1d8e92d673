//! The output of `tarn why` and `tarn status`, word by word.

mod common;

use common::{Log, MIB, MS, act, info, instance, mosaic, part, tier_ref};
use tarn_ports::Record;
use tarn_report::{ActiveTransferStatus, LiveStatus, RunStatus, WhyError, render, status, why};
use tarn_types::action::{AttemptSpec, Do, NodeReplica, Outcome, Subject};
use tarn_types::event::{AttemptOutcome, Event, RunError, RunErrorKind, Undeclared, Usage};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, NodeId, TransferId};
use tarn_types::nodes::{LIVE_FORMAT, LiveRunStatus, MovingTransfer, Phase, RunningStep};
use tarn_types::part::{PartClass, PartMove, Place, StoreKey, Transfer, TransferKind, Verify};
use tarn_types::reason::Reason;

/// Two tiles on two nodes: one is being projected, one failed, one transfer is on its way.
fn small() -> Vec<Record> {
    let mut log = Log::default();
    let started = common::shape::start(
        common::shape::workflow("project"),
        common::shape::cluster(2, 1),
    );
    log.add(
        0,
        Event::Started(Box::new(started)),
        vec![act(Do::List { data: DataId(0) }, Reason::Needed)],
    );
    let tile = |seq: u32| {
        info(
            &format!("raw.{seq}"),
            seq,
            PartClass::Entry(format!("t{seq}.fits")),
            10 * MIB,
        )
    };
    log.add(
        5 * MS,
        Event::SourceListed {
            data: DataId(0),
            parts: vec![tile(0), tile(1)],
        },
        vec![],
    );
    let place = |index, node| Do::Assign {
        instance: instance(0, index),
        nodes: vec![tier_ref(node)],
        reserve: MIB,
        end: 0,
    };
    let best = |node, next| Reason::EarliestEnd {
        node: NodeId(node),
        free_in: 0,
        data_in: 52 * MS,
        missing: 10 * MIB,
        local: 0,
        next: Some((NodeId(next), 7 * MS)),
        thriftier: false,
    };
    for n in 0..2 {
        log.act(5 * MS, place(n, n), best(n, 1 - n));
        let fetch = Transfer {
            id: TransferId(u64::from(n)),
            data: DataId(0),
            version: 0,
            parts: vec![PartMove {
                part: part(0, 0, 0, n),
                from: Place::Source,
            }],
            to: Place::Node(tier_ref(n)),
            kind: TransferKind::ExternalIn,
            verify: Verify::Copy,
            priority: 1,
        };
        log.act(
            5 * MS,
            Do::Transfer(fetch),
            Reason::ReadExternal {
                instance: instance(0, n),
            },
        );
    }
    let done = Event::TransferDone {
        id: TransferId(0),
        bytes: 10 * MIB,
        hashes: vec![],
        stored: vec![10 * MIB],
        took: 50 * MS,
    };
    log.add(60 * MS, done, vec![]);
    let run = |attempt| AttemptSpec {
        instance: instance(0, 0),
        attempt,
        item: Some("t0.fits".into()),
        nodes: vec![tier_ref(0)],
        views: vec![vec![vec![NodeReplica {
            part: part(0, 0, 0, 0),
            key: StoreKey("raw.0".into()),
            tier_ref: tier_ref(0),
        }]]],
        identity: Hash::default(),
        store: "s".into(),
        reserve: MIB,
        partitions: Vec::new(),
    };
    log.act(60 * MS, Do::Run(Box::new(run(1))), Reason::Ready);
    let failure = RunError {
        kind: RunErrorKind::Exit,
        message: "`project.sh` ended with status 2".into(),
    };
    let ended = AttemptOutcome::Failed {
        failure,
        log_tail: "no header\ngiving up\n".into(),
        newest: None,
    };
    log.add(
        900 * MS,
        Event::Ended {
            instance: instance(0, 0),
            attempt: 1,
            ended,
            usage: Usage::default(),
        },
        vec![act(
            Do::Run(Box::new(run(2))),
            Reason::Retry { attempt: 2, of: 3 },
        )],
    );
    let full = Reason::WaitForSpace {
        tier_ref: tier_ref(1),
        want: 20 * MIB,
        free: 3 * MIB,
    };
    for t in 910..913 {
        log.act(
            t * MS,
            Do::Note {
                about: Subject::Instance(instance(0, 1)),
            },
            full.clone(),
        );
    }
    log.records()
}

fn why_text(query: &str) -> String {
    render(&why(&small(), query).expect("it is known"))
}

#[test]
fn why_of_an_element() {
    let golden = "     \
     5 ms  place project[t0.fits] on n0
           because n0 ends first: cores free in 0 us, data there in 52 ms (0 B local, 10.00 MiB to fetch); n1 would end 7 ms later
     5 ms  x0: move raw v0 (1 part, 10.00 MiB) from its source to n0/tmpfs (external in)
           because project[t0.fits] needs it and the external store is its best source
    60 ms  start project[t0.fits], attempt 1, on n0
           because inputs are there and cores are free
   900 ms  attempt 1 of project[t0.fits] failed
           because `project.sh` ended with status 2
           | no header
           | giving up
   900 ms  start project[t0.fits], attempt 2, on n0
           because attempt 2 of 3: the one before it failed
";
    assert_eq!(
        why_text("project[t0.fits]").trim_start(),
        golden.trim_start()
    );
    assert_eq!(why_text("project[0]"), why_text("project[t0.fits]"));
}

#[test]
fn why_of_a_tier_tells_again_and_again_once() {
    let text = why_text("n1/tmpfs");
    let golden = "   910 ms  project[t1.fits] (3 times)
           because waiting: 20.00 MiB wanted on tmpfs of n1, 3.00 MiB free; running steps and transfers have to end first
";
    assert!(text.ends_with(golden), "{text}");
    assert!(!text.contains("n0/tmpfs"), "{text}");
}

#[test]
fn why_of_the_run_tells_what_failed_and_what_waits() {
    let golden = "   900 ms  attempt 1 of project[t0.fits] failed
           because `project.sh` ended with status 2
           | no header
           | giving up
   912 ms  project[t1.fits]
           because waiting: 20.00 MiB wanted on tmpfs of n1, 3.00 MiB free; running steps and transfers have to end first
";
    assert_eq!(why_text(""), golden);
    let ended = why(&mosaic::mosaic(1, 9, 2, 1), "").expect("it ran");
    let last = ended.last().expect("it ended");
    assert_eq!(
        (&*last.what, &*last.why),
        (
            "finish: done",
            "every step is committed and every dest is written"
        )
    );
}

#[test]
fn every_kind_of_name_is_known() {
    for query in ["project", "raw", "n1", "tmpfs", "x1", "project[1]"] {
        assert!(!why_text(query).is_empty(), "{query}");
    }
    assert!(why_text("raw").contains("list raw"));
    assert!(why(&small(), "thumbs").expect("a step").is_empty());
}

#[test]
fn unknown_names_are_refused_with_what_is_like_them() {
    let error = why(&small(), "projcet").expect_err("no such name");
    assert_eq!(
        error.to_string(),
        "`projcet` is no step, dataset, node, tier or transfer of this run; did you mean `project`, `projected`?"
    );
    let WhyError::Unknown { near, .. } =
        why(&small(), "project[t1.fitz]").expect_err("no such element")
    else {
        panic!("another error");
    };
    assert!(near.contains(&"project[t0.fits]".to_string()), "{near:?}");
    assert!(why(&[], "").is_err());
}

#[test]
fn status_of_a_running_workflow() {
    let golden = "\
mosaic-3  running  1.50 s  policy data
external store emulated at 200 MB/s, 2 ms a file
steps: 1 running, 1 staging, 4 waiting; and 2 steps whose number of instances is not known yet (`differ`, `correct`)

  RUNNING           NODE  ATTEMPT  FOR
  project[t0.fits]  n0    2        600 ms

  MOVING  DATA    KIND         BYTES      FOR     FROM        TO
  x1      raw v0  external in  10.00 MiB  1.50 s  its source  n1/tmpfs

  MOVED        BYTES      MEAN
  external in  10.00 MiB  6.67 MiB/s

  NODE  RUNNING  CORES
  n0    1        1 of 1
  n1    0        0 of 1

  TIER      HELD       OF         FULL
  n0/tmpfs  10.00 MiB  1.00 GiB   0 %
  n0/disk   0 B        16.00 GiB  0 %
  n1/tmpfs  0 B        1.00 GiB   0 %
  n1/disk   0 B        16.00 GiB  0 %

last failure at 900 ms: attempt 1 of project[t0.fits]
  `project.sh` ended with status 2
  | no header
  | giving up
";
    let now = status(&small(), 1500 * MS).expect("it was started");
    assert_eq!(now.to_string(), golden);
    let json = serde_json::to_string(&now).expect("it is plain data");
    assert_eq!(
        serde_json::from_str::<RunStatus>(&json).expect("it reads back"),
        now
    );
}

/// A failure that a later attempt has made up for is not named.
#[test]
fn status_names_no_failure_that_is_over() {
    let mut records = small();
    let last = records.last().expect("there are some").clone();
    let ended = Event::Ended {
        instance: instance(0, 0),
        attempt: 2,
        ended: AttemptOutcome::Committed {
            outputs: Vec::new(),
            undeclared: Undeclared::default(),
        },
        usage: Usage::default(),
    };
    records.push(Record {
        seq: last.seq + 1,
        now: 1200 * MS,
        event: ended,
        actions: Vec::new(),
        ..last
    });
    let before = status(&small(), 1500 * MS).expect("it was started");
    assert!(before.last_failure.is_some());
    let now = status(&records, 1500 * MS).expect("it was started");
    assert_eq!(now.last_failure, None, "{now}");
    assert!(!now.to_string().contains("last failure"), "{now}");
}

#[test]
fn status_of_a_run_that_says_where_it_is() {
    let mut live_status = LiveStatus::default();
    assert!(live_status.status(0, None).is_err(), "nothing has begun");
    for record in &small() {
        live_status.apply(record);
    }
    let transfer = |id, done| MovingTransfer {
        id: TransferId(id),
        data: DataId(0),
        kind: TransferKind::ExternalIn,
        done,
        total: 10 * MIB,
        elapsed: 1000 * MS,
    };
    let step = |attempt| RunningStep {
        instance: instance(0, 0),
        attempt,
        phase: Phase::Committing,
        elapsed: 600 * MS,
    };
    let mut live = LiveRunStatus {
        format: LIVE_FORMAT,
        pid: 1,
        beat: 0,
        now: 2000 * MS,
        // The first is over, and there is no such attempt and no such transfer.
        transfers: vec![transfer(0, MIB), transfer(1, 2 * MIB), transfer(99, MIB)],
        steps: vec![step(2), step(7)],
    };
    let now = live_status
        .status(live.now, Some(&live))
        .expect("it has begun");
    assert_eq!((now.running.len(), now.transfers.len()), (1, 1));
    assert_eq!(now.running[0].phase.as_deref(), Some("committing"));
    let of = |t: &ActiveTransferStatus| (t.done, t.rate, t.left_ns);
    let known = (Some(2 * MIB), Some(2 * MIB), Some(4000 * MS));
    assert_eq!(of(&now.transfers[0]), known);
    assert_eq!((now.moved[0].bytes, now.moved[0].mean), (12 * MIB, 6 * MIB));
    assert_eq!(now.moved[0].rate, None, "there was no look before");
    assert_eq!(
        now.line(),
        "[    2.00 s] mosaic-3 running: 1 running, 1 staging, 4 waiting; moving raw v0 to n1/tmpfs: \
         2.00 MiB of 10.00 MiB at 2.00 MiB/s; n0/tmpfs 0 % full"
    );
    let text = now.to_string();
    for words in ["PHASE", "committing", "DONE", "LEFT", "4.00 s"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Two more seconds bring 4 MiB; then nothing moves.
    (live.now, live.transfers[1].elapsed) = (4000 * MS, 3000 * MS);
    live.transfers[1].done = 6 * MIB;
    let now = live_status
        .status(live.now, Some(&live))
        .expect("it has begun");
    assert_eq!(now.transfers[0].rate, Some(2 * MIB));
    assert_eq!(now.moved[0].rate, Some(2 * MIB));
    (live.now, live.transfers[1].elapsed) = (9000 * MS, 8000 * MS);
    let now = live_status
        .status(live.now, Some(&live))
        .expect("it has begun");
    assert_eq!(of(&now.transfers[0]), (Some(6 * MIB), Some(0), None));
    // There is no live status any more.
    let now = live_status.status(live.now, None).expect("it has begun");
    assert_eq!(of(&now.transfers[0]), (None, None, None));
    assert_eq!((now.moved[0].bytes, now.moved[0].rate), (10 * MIB, None));
}

#[test]
fn status_of_what_has_ended() {
    let mut records = small();
    let last = records.last().expect("there are some").clone();
    let reason = Reason::AfterFailure {
        about: Subject::Instance(instance(0, 0)),
    };
    let finish = act(
        Do::Finish {
            outcome: Outcome::Failed,
        },
        reason,
    );
    records.push(Record {
        seq: last.seq + 1,
        now: 2000 * MS,
        event: Event::Timer,
        actions: vec![finish],
        ..last
    });
    let text = status(&records, 9000 * MS)
        .expect("it was started")
        .to_string();
    assert!(
        text.starts_with("mosaic-3  failed  2.00 s  policy data\n"),
        "{text}"
    );
    let why = why(&records, "").expect("the run is known");
    assert_eq!(
        why.last().expect("an end").why,
        "project[t0.fits] failed; nothing new is started"
    );
}
