//! Encrypted datasets: sealed wherever they lie, in clear only where their steps see them.

use crate::Test;
use crate::bench::{
    Bench, Machine, committed, data, failed, held, namespaces_allowed, of_another_boot, step,
    tier_ref, tree, used,
};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tarn_node::keys::{DataKeys, Wrapping, workspaces};
use tarn_node::{Local, Namespaces};
use tarn_seal::ring::KeyRing;
use tarn_seal::wrap::{WrappedKeyOwner, WrappingKey};
use tarn_types::action::{Do, NodeReplica};
use tarn_types::event::{Event, Output, RunErrorKind};
use tarn_types::key::{DataKey, KeyId};
use tarn_types::nodes::{OwnedNodes, Staying};
use tarn_types::part::{PartInfo, Place, StoreKey};
use tarn_types::workflow::{Dataset, Distribution, Role};
use zeroize::Zeroizing;

pub(crate) const TESTS: &[Test] = &[
    (
        "sealed::what_a_step_reads_and_writes_lies_sealed",
        what_a_step_reads_and_writes_lies_sealed,
    ),
    (
        "sealed::a_sealed_dataset_is_changed_in_place_and_moved",
        a_sealed_dataset_is_changed_in_place_and_moved,
    ),
    (
        "sealed::the_key_goes_with_the_last_replica",
        the_key_goes_with_the_last_replica,
    ),
    (
        "sealed::what_was_touched_is_found_when_a_step_needs_it",
        what_was_touched_is_found_when_a_step_needs_it,
    ),
    (
        "sealed::another_key_finds_nothing_and_no_run_begins_without_one",
        another_key_finds_nothing_and_no_run_begins_without_one,
    ),
    (
        "sealed::a_clean_up_forgets_the_keys_of_what_it_removes",
        a_clean_up_forgets_the_keys_of_what_it_removes,
    ),
    (
        "sealed::keys_of_data_are_wrapped_anew_and_the_data_stays",
        keys_of_data_are_wrapped_anew_and_the_data_stays,
    ),
    (
        "sealed::nodes_that_make_a_key_at_once_have_one",
        nodes_that_make_a_key_at_once_have_one,
    ),
    (
        "sealed::a_node_has_no_use_for_what_the_user_s_own_key_has_wrapped_until_it_is_wrapped_anew",
        a_node_has_no_use_for_what_the_user_s_own_key_has_wrapped_until_it_is_wrapped_anew,
    ),
    (
        "sealed::two_parts_of_a_sealed_dataset_are_one_view",
        two_parts_of_a_sealed_dataset_are_one_view,
    ),
];

const SECRET: &str = "the melting point is 1811 K";

fn ring() -> KeyRing {
    let secret = Zeroizing::new([7; 32]);
    KeyRing::new(WrappingKey::new(KeyId([3; 16]), secret))
}

fn encrypted(dataset: Dataset) -> Dataset {
    Dataset {
        encrypt: true,
        of: None,
        ..dataset
    }
}

/// One step that reads `raw` and makes `made`, both encrypted.
fn bench(run: &str) -> Bench {
    let mut raw = encrypted(data("raw"));
    let uses = vec![
        used(0, Role::In, Distribution::Single),
        used(1, Role::Out, Distribution::Single),
    ];
    let made = encrypted(data("made"));
    let mut bench = Bench::new(vec![raw.clone(), made], vec![step(run, uses)]);
    bench.keys = Some(ring());
    raw.source = Some(bench.path("raw"));
    bench.workflow.data[0] = raw;
    bench.write("raw/file", SECRET);
    bench.write("raw/sub/large", &SECRET.repeat(50_000));
    bench
}

fn none_in_clear(folder: &Path) {
    for (name, content) in raw_tree(folder) {
        let needle = &SECRET.as_bytes()[4..20];
        let seen = content.windows(needle.len()).any(|w| w == needle);
        assert!(!seen, "{name} in {} is in clear", folder.display());
    }
}

fn raw_tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let names = tree(folder).into_keys();
    names
        .map(|name| {
            let content = std::fs::read(folder.join(&name)).unwrap_or_default();
            (name, content)
        })
        .collect()
}

fn info(output: &Output) -> Vec<PartInfo> {
    output.parts.iter().map(|(info, _)| info.clone()).collect()
}

fn keys_in(bench: &Bench) -> usize {
    let keys = bench.state().keys("ws");
    if keys.is_dir() { tree(&keys).len() } else { 0 }
}

fn staged(bench: &Bench) -> Option<(Machine, Vec<NodeReplica>)> {
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return None;
    }
    let raw = world.stage(0, 0);
    Some((world, raw))
}

/// A step whose middle can be looked at: it shows that it is there, and waits.
fn waiting(bench: &Bench, run: &str) -> String {
    let (there, on) = (bench.path("there"), bench.path("on"));
    format!(
        "{run}\ntouch {}\nwhile [ ! -e {} ]; do sleep 0.02; done",
        there.display(),
        on.display()
    )
}

fn what_a_step_reads_and_writes_lies_sealed() {
    let mut bench = bench("");
    bench.workflow.steps[0].run = waiting(
        &bench,
        "cat $TARN_raw/file > $TARN_made/copy && cp -r $TARN_raw/sub $TARN_made/ && cp $TARN_raw/file scratch
         ! touch $TARN_raw/new 2>/dev/null && test ! -e $(dirname $TARN_SCRATCH)/../n0/work/*/room/in",
    );
    let Some((mut world, raw)) = staged(&bench) else {
        return;
    };
    none_in_clear(&bench.path("tier"));
    world.begin(0, 1, &[0], vec![vec![raw], vec![vec![]]]);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !bench.path("there").exists() && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(bench.path("there").exists());
    // It has read and written all of it, and nothing of that is on the tier.
    none_in_clear(&bench.path("tier"));
    bench.write("on", "");
    let outputs = committed(world.ended());
    none_in_clear(&bench.path("tier"));
    let dest = bench.path("out");
    let from = Place::Node(tier_ref(0));
    let made = info(&outputs[0]);
    assert!(
        made[0].stored > made[0].bytes,
        "what it takes is what lies there"
    );
    world
        .transfer(1, 1, &made, &from, &Place::External(dest.clone()))
        .expect("a delivery");
    let out = tree(&dest);
    assert_eq!(out["copy"], SECRET);
    assert_eq!(out["sub/large"], SECRET.repeat(50_000));
    assert_eq!(keys_in(&bench), 2);
}

fn a_sealed_dataset_is_changed_in_place_and_moved() {
    let mut bench = bench("echo changed >> $TARN_raw/file");
    bench.nodes = 2;
    bench.workflow.steps[0].uses = vec![used(0, Role::Inout, Distribution::Single)];
    let Some((mut world, raw)) = staged(&bench) else {
        return;
    };
    let before = raw.clone();
    let outputs = committed(world.run(vec![vec![raw]]));
    none_in_clear(&bench.path("tier"));
    let made = info(&outputs[0]);
    let (here, there) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    world.transfer(0, 1, &made, &here, &there).expect("a copy");
    world
        .transfer(0, 1, &made, &there, &Place::Drained)
        .expect("a drain");
    none_in_clear(&bench.path("external"));
    let dest = bench.path("out");
    let out = Place::External(dest.clone());
    world
        .transfer(0, 1, &made, &Place::Drained, &out)
        .expect("a delivery");
    assert_eq!(tree(&dest)["file"], format!("{SECRET}changed\n"));
    // The pre-image is as it was.
    let before: Vec<_> = before
        .iter()
        .map(|h| (h.part, h.key.clone(), here.clone()))
        .collect();
    assert_eq!(world.inventory(&before).len(), before.len());
}

fn the_key_goes_with_the_last_replica() {
    let mut bench = bench("true");
    bench.nodes = 2;
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return;
    }
    let infos = world.list(0).expect("a source");
    let part = held(0, 0, &infos, 0)[0].part;
    let (here, there) = (Place::Node(tier_ref(0)), Place::Node(tier_ref(1)));
    for (from, to) in [(&Place::Source, &here), (&here, &there)] {
        world.transfer(0, 0, &infos, from, to).expect("a copy");
        assert_eq!(keys_in(&bench), 1);
    }
    for (at, left) in [(here, 1), (there, 0)] {
        world.perform(Do::Evict {
            part,
            key: infos[0].key.clone(),
            at: at.clone(),
        });
        assert!(matches!(world.next(), Event::Evicted { .. }));
        assert_eq!(keys_in(&bench), left, "{at:?}");
    }
    // It can be brought again, under another key.
    world.stage(0, 0);
    assert_eq!(keys_in(&bench), 1);
}

fn what_was_touched_is_found_when_a_step_needs_it() {
    let bench = bench("cat $TARN_raw/file > $TARN_made/copy");
    let Some((mut world, raw)) = staged(&bench) else {
        return;
    };
    let tier = bench.path("tier");
    let name = tree(&tier)
        .into_keys()
        .find(|n| n.ends_with("/file"))
        .expect("a file");
    let path = tier.join(name);
    let mut bytes = std::fs::read(&path).expect("a sealed file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let meta = path.metadata().expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its owner");
    std::fs::write(&path, bytes).expect("a file");
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("a file");
    file.set_modified(meta.modified().expect("a time"))
        .expect("a time");
    std::fs::set_permissions(&path, meta.permissions()).expect("its owner");
    world.begin(0, 1, &[0], vec![vec![raw], vec![vec![]]]);
    let Event::Evicted { part, .. } = world.next() else {
        panic!("the engine is not told");
    };
    assert_eq!(part.data.0, 0);
    let (kind, why, _) = failed(world.ended());
    assert_eq!(kind, RunErrorKind::Corrupt, "{why}");
    assert!(
        why.contains("`raw` cannot be opened") && !why.contains("melting"),
        "{why}"
    );
    assert_eq!(keys_in(&bench), 0, "nothing is left of it");
    let again = world.stage(0, 0);
    world.begin(0, 2, &[0], vec![vec![again], vec![vec![]]]);
    committed(world.ended());
}

fn another_key_finds_nothing_and_no_run_begins_without_one() {
    let mut bench = bench("true");
    let Some((world, raw)) = staged(&bench) else {
        return;
    };
    drop(world);
    let wanted: Vec<_> = raw
        .iter()
        .map(|h| (h.part, h.key.clone(), Place::Node(h.tier_ref)))
        .collect();
    assert_eq!(bench.world().inventory(&wanted).len(), 1);
    // After a reboot every byte is opened before it is believed.
    of_another_boot(&bench.path("tier/ws/n0/parts").join(&raw[0].key.0));
    assert_eq!(bench.world().inventory(&wanted).len(), 1);
    let other = WrappingKey::new(KeyId([4; 16]), Zeroizing::new([8; 32]));
    bench.keys = Some(KeyRing::new(other));
    assert_eq!(bench.world().inventory(&wanted).len(), 0);
    let refused = |bench: &Bench| {
        let refused = Local::new(bench.config("ws")).map(drop);
        refused.expect_err("it is refused").to_string()
    };
    bench.keys = None;
    assert!(refused(&bench).contains("`tarn key new`"));
    bench.keys = Some(ring());
    bench.namespaces = Namespaces::Off;
    assert!(refused(&bench).contains("needs namespaces"));
}

fn a_clean_up_forgets_the_keys_of_what_it_removes() {
    let bench = bench("true");
    let Some((world, raw)) = staged(&bench) else {
        return;
    };
    drop(world);
    let mut staying = Staying::default();
    staying
        .keep
        .insert((raw[0].key.clone(), Place::Node(tier_ref(0))));
    // A half-written key of a process that was killed; its part was never made.
    let folder = bench.state().keys("ws").join("raw");
    std::fs::write(folder.join("never.0.r.1.0.0123456789abcdef.tmp"), "half").unwrap();
    bench.world().clean(&staying);
    assert_eq!(keys_in(&bench), 1);
    bench.world().clean(&Staying::default());
    assert_eq!(keys_in(&bench), 0);
}

/// The keys of a run's nodes: not the user's key, but those that are made of it.
fn of_nodes(bench: &Bench) -> DataKeys {
    let wrapping = Wrapping::of_user(ring(), "ws").unwrap();
    let wrapping = Wrapping::of_run(wrapping.for_nodes().clone());
    DataKeys::new(&bench.state(), "ws", wrapping)
}

fn nodes_that_make_a_key_at_once_have_one() {
    const NODES: usize = 4;
    let bench = bench("");
    for n in 0..50 {
        let part = StoreKey(format!("part.{n}"));
        let at_once = std::sync::Barrier::new(NODES);
        let (bench, part, at_once) = (&bench, &part, &at_once);
        let secrets: Vec<[u8; 32]> = std::thread::scope(|scope| {
            let node = |_| {
                let keys = of_nodes(bench);
                scope.spawn(move || {
                    at_once.wait();
                    *keys.make("raw", part).expect("a key").secret()
                })
            };
            let nodes: Vec<_> = (0..NODES).map(node).collect();
            nodes.into_iter().map(|n| n.join().unwrap()).collect()
        });
        assert_eq!(secrets, [secrets[0]; NODES], "{part:?}");
    }
    assert_eq!(keys_in(&bench), 50, "and nothing half-written");
}

fn a_node_has_no_use_for_what_the_user_s_own_key_has_wrapped_until_it_is_wrapped_anew() {
    let bench = bench("");
    let part = StoreKey("part.0".into());
    let key = DataKey::new(KeyId([4; 16]), Zeroizing::new([5; 32]));
    // As earlier releases have done it.
    let owner = WrappedKeyOwner {
        uid: rustix::process::geteuid().as_raw(),
        dataset: "raw",
        version: "part.0",
    };
    let wrapped = ring().newest().wrap(&key, owner, [6; 12]).unwrap();
    let folder = bench.state().keys("ws").join("raw");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("part.0"), wrapped).unwrap();
    let unknown = of_nodes(&bench).get("raw", &part).unwrap_err();
    assert_eq!(unknown.kind, RunErrorKind::Corrupt);
    let wrapping = Wrapping::of_user(ring(), "ws").unwrap();
    let user = DataKeys::new(&bench.state(), "ws", wrapping);
    assert_eq!(user.get("raw", &part).unwrap().secret(), key.secret());
    // A world without nodes begins a run over several.
    let mut config = bench.config("ws");
    config.own = OwnedNodes::Some([].into());
    drop(Local::new(config).expect("a world"));
    let of_node = of_nodes(&bench).get("raw", &part);
    // Nothing describes the part: its key goes with the run.
    assert_eq!(of_node.unwrap_err().kind, RunErrorKind::Corrupt);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("part.0"), wrapped).unwrap();
    std::fs::write(bench.state().manifest("ws", &part), b"").unwrap();
    let mut config = bench.config("ws");
    config.own = OwnedNodes::Some([].into());
    drop(Local::new(config).expect("a world"));
    let of_node = of_nodes(&bench).get("raw", &part).unwrap();
    assert_eq!(of_node.secret(), key.secret());
    assert_eq!(user.rewrap().unwrap(), 0, "it is wrapped with the newest");
}

fn keys_of_data_are_wrapped_anew_and_the_data_stays() {
    let mut bench = bench("true");
    let Some((world, raw)) = staged(&bench) else {
        return;
    };
    drop(world);
    let mut keys = ring();
    let secret = Zeroizing::new([9; 32]);
    keys.rotate(WrappingKey::new(KeyId([9; 16]), secret))
        .expect("room");
    let wrapping = Wrapping::of_user(keys.clone(), "ws").unwrap();
    let data = DataKeys::new(&bench.state(), "ws", wrapping);
    assert_eq!(data.rewrap().expect("a key"), 1);
    assert_eq!(data.rewrap().expect("a key"), 0);
    keys.drop_old();
    bench.keys = Some(keys);
    let wanted = [(raw[0].part, raw[0].key.clone(), Place::Node(tier_ref(0)))];
    of_another_boot(&bench.path("tier/ws/n0/parts").join(&raw[0].key.0));
    assert_eq!(bench.world().inventory(&wanted).len(), 1);
    assert_eq!(workspaces(&bench.state()).expect("a folder"), ["ws"]);
}

fn two_parts_of_a_sealed_dataset_are_one_view() {
    let mut bench = bench("cat $TARN_raw/*/x > $TARN_made/all");
    bench.workflow.data[0].partition = tarn_types::workflow::VersionPartitioning::Entries;
    std::fs::remove_dir_all(bench.path("raw")).expect("a folder");
    bench.write("raw/a/x", "one ");
    bench.write("raw/b/x", "two");
    let Some((mut world, raw)) = staged(&bench) else {
        return;
    };
    assert_eq!((raw.len(), keys_in(&bench)), (2, 2));
    let outputs = committed(world.run(vec![vec![raw], vec![vec![]]]));
    let dest = bench.path("out");
    let out = Place::External(dest.clone());
    let made = info(&outputs[0]);
    world
        .transfer(1, 1, &made, &Place::Node(tier_ref(0)), &out)
        .expect("a delivery");
    assert_eq!(tree(&dest)["all"], "one two");
    let view = held(1, 1, &made, 0);
    assert_eq!(view.len(), 1);
}
