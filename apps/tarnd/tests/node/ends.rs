//! How sessions and tarnds end, and the data that is left then.

use crate::Test;
use crate::bed::*;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tarn_proto::node::{NodeNotification, NodeReply, NodeRequest, NodeStartReport};
use tarn_types::nodes::Staying;
use tarn_types::part::Place;

pub(crate) const TESTS: &[Test] = &[
    (
        "ends::a_client_that_is_killed_takes_its_steps_with_it",
        a_client_is_killed,
    ),
    ("ends::idle_it_needs_little", idle_it_needs_little),
    (
        "ends::a_client_that_falls_silent_is_replaced",
        a_silent_client_is_replaced,
    ),
    (
        "ends::what_nobody_comes_back_to_goes",
        what_nobody_comes_back_to_goes,
    ),
    ("ends::steps_end_with_tarnd", steps_end_with_tarnd),
    ("ends::under_nohup_it_stays", under_nohup_it_stays),
    (
        "ends::a_new_tarnd_takes_the_place_of_an_old_one",
        a_new_tarnd_takes_the_place,
    ),
];

/// This program's first argument when it is a client that is to be killed.
pub(crate) const CLIENT: &str = "__client";

#[derive(Serialize, Deserialize)]
struct Order {
    bed: Bed,
    started: NodeStartReport,
}

/// Makes a replica, then runs a step that does not end.
pub(crate) fn client() -> ExitCode {
    let Order { bed, started } = serde_json::from_reader(std::io::stdin()).unwrap();
    let client = bed.connect(&started);
    client.open(bed.opening_of(&[(&started, &client)], 0));
    client.clean(Staying::default());
    client.run(MAKES, 0);
    client.begin(BEATS, 1, 0);
    loop {
        std::thread::park();
    }
}

fn start_client(bed: &Bed, node: &Node) -> Child {
    let mut client = Command::new(std::env::current_exe().unwrap())
        .arg(CLIENT)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let order = Order {
        bed: bed.clone(),
        started: node.started.clone(),
    };
    let mut stdin = client.stdin.take().unwrap();
    stdin
        .write_all(&serde_json::to_vec(&order).unwrap())
        .unwrap();
    client
}

fn a_client_is_killed() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let mut first = start_client(&bed, &node);
    bed.wait_for_beats();
    first.kill().unwrap();
    first.wait().unwrap();
    bed.wait_for_silence();
    let work = bed.tier("n1").work();
    // tarnd is still there for the run, and so is its data.
    let client = bed.connect(&node.started);
    client.open(bed.node_config(&[(&node, &client)], 0));
    let at = Place::Node(tier_ref(0));
    let key = tarn_types::part::StoreKey(format!("{RUN}.s0.a1.0"));
    let wanted = vec![(part(MAKES), key.clone(), at.clone())];
    let found = client.call(NodeRequest::Inventory(wanted));
    assert_eq!(found, NodeReply::Found(vec![(part(MAKES), at.clone())]));
    client.clean(Staying {
        keep: [(key.clone(), at)].into(),
        resumed: true,
        ..Staying::default()
    });
    assert!(bed.tier("n1").part(&key).is_dir());
    assert_eq!(std::fs::read_dir(work).map_or(0, Iterator::count), 0);
    client.run(LARGE, 0);
}

fn a_silent_client_is_replaced() {
    let bed = Bed::make();
    let node = bed.start("n1", &[]);
    let stop = |client: &Child| {
        let pid = rustix::process::Pid::from_child(client);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    };
    // Its steps end although its connection is there.
    let mut first = start_client(&bed, &node);
    bed.wait_for_beats();
    stop(&first);
    bed.wait_for_silence();
    first.kill().unwrap();
    first.wait().unwrap();
    std::fs::remove_file(bed.path("beat")).unwrap();
    let mut second = start_client(&bed, &node);
    bed.wait_for_beats();
    stop(&second);
    let client = bed.opened(&node);
    bed.wait_for_silence();
    client.run(MAKES, 0);
    second.kill().unwrap();
    second.wait().unwrap();
}

fn what_nobody_comes_back_to_goes() {
    let bed = Bed::make();
    let mut node = bed.start("n1", &["--keep-for", "1"]);
    let client = bed.opened(&node);
    let (made, large) = (client.run(MAKES, 0), client.run(LARGE, 0));
    let tier = bed.tier("n1");
    let [made, large] = [tier.part(&made.key), tier.part(&large.key)];
    client.clean(Staying {
        keep: [].into(),
        protected: [made.clone()].into(),
        ..Staying::default()
    });
    let kept = tier.part(&client.run(KEEPS, 0).key);
    client.begin(BEATS, 1, 0);
    bed.wait_for_beats();
    drop(client);
    bed.wait_for_silence();
    assert!(node.ended().success());
    assert!(
        kept.join("f").is_file(),
        "the run itself keeps it, though it has not said so"
    );
    assert!(made.join("d/f").is_file() && !large.exists());
    assert!(!tier.work().exists() && !tier.incoming().exists());
    // Without anything to keep, nothing is left at all.
    let mut node = bed.start("n1", &["--keep-for", "1"]);
    let client = bed.opened(&node);
    client.clean(Staying::default());
    drop(client);
    assert!(node.ended().success());
    let root = bed.path("tier-n1");
    assert!(!root.join(WORKSPACE).exists());
    let ledger = std::fs::read_to_string(root.join("ledger")).unwrap_or_default();
    assert!(!ledger.contains(WORKSPACE), "{ledger}");
}

fn steps_end_with_tarnd() {
    for closes in [true, false] {
        let bed = Bed::make();
        let mut node = bed.start("n1", &[]);
        let client = bed.opened(&node);
        let made = client.run(MAKES, 0);
        client.begin(BEATS, 1, 0);
        bed.wait_for_beats();
        match closes {
            true => node.close_stdin(),
            false => node.terminate(),
        }
        assert!(node.ended().success());
        bed.wait_for_silence();
        let mut last = None;
        while let Some(notification) = client.next_notification() {
            last = Some(notification);
        }
        // A signal is reported, so that the run knows that nobody was lost by accident.
        assert_eq!(last == Some(NodeNotification::Ending), !closes, "{last:?}");
        assert!(client.session.over().is_some());
        assert!(
            bed.tier("n1").part(&made.key).is_dir(),
            "the next tarnd finds it"
        );
    }
}

/// The terminal goes: it ends as by SIGTERM; under `nohup` it stays.
fn under_nohup_it_stays() {
    let bed = Bed::make();
    // Independent of the way in which these tests were started.
    let mut node = bed.start_by(&["env", "--default-signal=HUP"], "n1");
    node.hang_up();
    assert!(node.ended().success());
    let node = bed.start_by(&["nohup"], "n1");
    node.hang_up();
    std::thread::sleep(Duration::from_millis(200));
    let client = bed.opened(&node);
    client.clean(Staying::default());
    client.run(MAKES, 0);
}

fn a_new_tarnd_takes_the_place() {
    let bed = Bed::make();
    let mut old = bed.start("n1", &[]);
    let first = bed.opened(&old);
    first.begin(BEATS, 1, 0);
    bed.wait_for_beats();
    let new = bed.start("n1", &[]);
    let second = bed.opened(&new);
    assert!(old.ended().success());
    bed.wait_for_silence();
    second.clean(Staying::default());
    second.run(MAKES, 0);
}

fn idle_it_needs_little() {
    let bed = Bed::make();
    let usual = (2_000, 10_000);
    let node = bed.start_with("n1", &[], usual);
    let client = bed.connect_with(&node.started, usual);
    client.open(bed.node_config(&[(&node, &client)], 0));
    client.clean(Staying::default());
    client.run(MAKES, 0);
    // Wake-ups, not time: the time of each depends more on the machine than on tarnd.
    let woken = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap();
        let one = |t: std::io::Result<std::fs::DirEntry>| {
            let text = std::fs::read_to_string(t.unwrap().path().join("status")).ok()?;
            let line = text.lines().find(|l| l.starts_with("voluntary_ctxt"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        tasks.filter_map(one).sum()
    };
    std::thread::sleep(Duration::from_millis(500));
    let (before, since) = (woken(), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let rate = (woken() - before) as f64 / since.elapsed().as_secs_f64();
    assert!(rate < 20.0, "{rate} wake-ups a second");
    // Its own pages: the mapped part of the program's file depends more on the build.
    let memory = std::fs::read_to_string(format!("/proc/{}/statm", node.pid())).unwrap();
    let mut pages = memory.split(' ').map(|n| n.parse::<u64>().unwrap_or(0));
    let own = pages.nth(1).unwrap() - pages.next().unwrap();
    assert!(own * 4096 < 10 << 20, "{own} pages");
}
