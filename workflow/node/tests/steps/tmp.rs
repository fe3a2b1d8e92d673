//! The folders of everybody: a step has its own, and sees in them what its workflow names.

use crate::Test;
use crate::bench::{Bench, committed, data, failed, namespaces_allowed, step, tree, used};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tarn_types::event::RunErrorKind;
use tarn_types::layout::TierDir;
use tarn_types::workflow::{Distribution, Role, Step};

pub(crate) const TESTS: &[Test] = &[
    (
        "tmp::two_steps_never_see_each_others_files",
        two_steps_never_see_each_others_files,
    ),
    (
        "tmp::what_is_not_named_is_hidden_unless_it_is_to_be_shared",
        what_is_not_named_is_hidden,
    ),
    (
        "tmp::what_the_workflow_names_is_seen_at_its_own_path",
        what_the_workflow_names_is_seen,
    ),
    ("tmp::it_is_open_to_all_and_empty", it_is_open_and_empty),
];

const ROOTS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

fn making(run: &str) -> Step {
    step(run, vec![used(0, Role::Out, Distribution::Single)])
}

/// A folder in each of the folders of everybody, with a file.
fn outside() -> Vec<tempfile::TempDir> {
    let in_root = |root| {
        let folder = tempfile::tempdir_in(root).expect("a folder of everybody");
        std::fs::write(folder.path().join("file"), "outside").expect("a file");
        folder
    };
    ROOTS.map(in_root).into()
}

fn names(folder: &Path) -> PathBuf {
    let name = folder.file_name().expect("a name");
    name.into()
}

fn two_steps_never_see_each_others_files() {
    // A name that nobody else has, and both have.
    let taken = tempfile::tempdir().expect("a folder");
    let own = names(taken.path());
    drop(taken);
    let run = format!(
        "for d in /tmp /var/tmp /dev/shm; do echo $TARN_STEP > $d/{}; done
         echo > $TARN_WORKFLOW_DIR/wrote.$TARN_STEP
         until test -e $TARN_WORKFLOW_DIR/wrote.one -a -e $TARN_WORKFLOW_DIR/wrote.two; do sleep 0.02; done
         cat /tmp/{0} /var/tmp/{0} /dev/shm/{0} > $TARN_made/$TARN_STEP",
        own.display()
    );
    let named = |name: &str, at| Step {
        name: name.into(),
        ..step(&run, vec![used(at, Role::Out, Distribution::Single)])
    };
    let run_of = run.replace("TARN_made", "TARN_more");
    let mut two = named("two", 1);
    two.run = run_of;
    let mut bench = Bench::new(vec![data("made"), data("more")], vec![named("one", 0), two]);
    bench.nodes = 2;
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return;
    }
    world.begin(0, 1, &[0], vec![vec![]]);
    world.begin(1, 1, &[1], vec![vec![]]);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let outputs = committed(world.ended());
        let (info, tier_refs) = &outputs[0].parts[0];
        let node = format!("n{}", tier_refs[0].node.at());
        seen.extend(tree(
            &TierDir::new(&bench.path("tier"), "ws", &node).part(&info.key),
        ));
    }
    seen.sort();
    let thrice = |name: &str| (name.to_owned(), format!("{name}\n").repeat(3));
    assert_eq!(seen, [thrice("one"), thrice("two")]);
    for root in ROOTS {
        assert!(!Path::new(root).join(&own).exists(), "{root}");
    }
}

fn what_is_not_named_is_hidden() {
    let outside = outside();
    let list = |shared: bool| {
        let paths: Vec<String> = outside
            .iter()
            .map(|f| format!("{}/file", f.path().display()))
            .collect();
        let mut step = making(&format!("cat {} > $TARN_made/x", paths.join(" ")));
        step.shared_tmp = shared;
        let bench = Bench::new(vec![data("made")], vec![step]);
        let world = bench.world();
        let allowed = namespaces_allowed(&world);
        drop(world);
        (bench, allowed)
    };
    let (bench, allowed) = list(false);
    if allowed {
        let (kind, message, log) = failed(bench.world().run(vec![vec![]]));
        assert_eq!(kind, RunErrorKind::Exit, "{message}");
        assert_eq!(log.matches("No such file").count(), 3, "{log}");
    }
    let (bench, _) = list(true);
    committed(bench.world().run(vec![vec![]]));
}

fn what_the_workflow_names_is_seen() {
    let outside = outside();
    let [program, socket, memory] = &outside[..] else {
        panic!("three");
    };
    let tool = program.path().join("tool");
    std::fs::write(&tool, "#!/bin/sh\ncat \"$(dirname \"$0\")/file\"\n").expect("a program");
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let socket = socket.path().join("agent");
    let _agent = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let run = format!(
        "{} > $TARN_made/x; test -S $AGENT_SOCK; cat $TARN_WORKFLOW_DIR/beside $TARN_raw/file >> $TARN_made/x
         test ! -e {}/file; echo mine > $TARN_WORKFLOW_DIR/mine",
        tool.display(),
        socket.parent().expect("a folder").display()
    );
    let uses = vec![
        used(0, Role::Out, Distribution::Single),
        used(1, Role::In, Distribution::Single),
    ];
    let mut step = step(&run, uses);
    let named = format!("unix:path={}", socket.display());
    step.env.insert("AGENT".into(), named);
    step.env
        .insert("AGENT_SOCK".into(), socket.display().to_string());
    let mut bench = Bench::new(vec![data("made"), data("raw")], vec![step]);
    bench.workflow.data[1].source = Some(memory.path().into());
    bench.write("beside", "beside\n");
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return;
    }
    let view = world.stage(1, 0);
    let outputs = committed(world.run(vec![vec![], vec![view]]));
    let key = &outputs[0].parts[0].0.key;
    let made = tree(&TierDir::new(&bench.path("tier"), "ws", "n0").part(key));
    assert_eq!(made["x"], "outsidebeside\noutside");
    assert!(bench.path("mine").exists());
}

fn it_is_open_and_empty() {
    let run = "stat -c %a /tmp /var/tmp /dev/shm > $TARN_made/modes; echo /tmp/.[a-z]* > $TARN_made/hidden; ls /var/tmp > $TARN_made/names; exec 7> /dev/shm/gone; rm /dev/shm/gone; echo left > /tmp/left";
    let bench = Bench::new(vec![data("made")], vec![making(run)]);
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return;
    }
    let outputs = committed(world.run(vec![vec![]]));
    let key = &outputs[0].parts[0].0.key;
    let made = tree(&TierDir::new(&bench.path("tier"), "ws", "n0").part(key));
    assert_eq!(made["modes"], "1777\n".repeat(3));
    assert_eq!(made["names"], "");
    // Files that it leaves there go with it.
    let work = TierDir::new(&bench.path("tier"), "ws", "n0").work();
    assert_eq!(std::fs::read_dir(work).map_or(0, Iterator::count), 0);
}
