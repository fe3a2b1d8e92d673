//! The hints of a failed step; and sockets in outputs, which are no failure.

use crate::Test;
use crate::bench::{Bench, committed, data, failed, namespaces_allowed, step, tree, used};
use tarn_node::Namespaces;
use tarn_types::event::RunErrorKind;
use tarn_types::layout::TierDir;
use tarn_types::workflow::{Distribution, Role};

pub(crate) const TESTS: &[Test] = &[
    (
        "hints::a_failure_says_what_to_do",
        a_failure_says_what_to_do,
    ),
    (
        "hints::a_socket_that_nobody_listens_at_is_left_out",
        a_socket_is_left_out,
    ),
];

fn a_failure_says_what_to_do() {
    let outside = tempfile::tempdir().expect("a folder");
    let file = outside.path().join("parameters");
    std::fs::write(&file, "").expect("a file");
    let reads = format!("cat {}", file.display());
    let starts = format!(
        "printf '%s\\n' 'mpirun was unable to find the specified executable file, and therefore' '' 'Executable: {}'; exit 1",
        file.display()
    );
    for (run, hints) in [
        (
            "echo > $TARN_raw/file.index",
            ["`raw`", "inout = [\"raw\"]"],
        ),
        ("mkdir $TARN_made", ["`made` is there already", "mkdir -p"]),
        (
            "python3 -c 'import os; os.mkdir(os.environ[\"TARN_made\"])'",
            ["`made` is there already", "$TARN_made/result"],
        ),
        (
            "sh ./analyse.sh",
            ["analyse.sh` is beside", "$TARN_WORKFLOW_DIR/"],
        ),
        (
            "python3 analyse.sh",
            ["analyse.sh` is beside", "$TARN_WORKFLOW_DIR/analyse.sh"],
        ),
        (&reads, ["/parameters` is there", "tmp = \"shared\""]),
        (&starts, ["/parameters` is there", "tmp = \"shared\""]),
    ] {
        let uses = vec![
            used(0, Role::Out, Distribution::Single),
            used(1, Role::In, Distribution::Single),
        ];
        let mut bench = Bench::new(vec![data("made"), data("raw")], vec![step(run, uses)]);
        bench.workflow.data[1].source = Some(bench.path("raw"));
        bench.write("raw/file", "");
        bench.write("analyse.sh", "");
        let mut world = bench.world();
        if !namespaces_allowed(&world) {
            return;
        }
        let view = world.stage(1, 0);
        let (kind, message, log) = failed(world.run(vec![vec![], vec![view]]));
        assert_eq!(kind, RunErrorKind::Exit, "{run}: {message}");
        for hint in hints {
            assert!(message.contains(hint), "{run}: {message}\n{log}");
        }
    }
}

fn a_socket_is_left_out() {
    for namespaces in [Namespaces::Auto, Namespaces::Off] {
        let run = "mkdir $TARN_made/deep; echo x > $TARN_made/f; python3 -c 'import os, socket; os.chdir(os.environ[\"TARN_made\"] + \"/deep\"); \
                   socket.socket(socket.AF_UNIX).bind(\"s\")'";
        let uses = vec![used(0, Role::Out, Distribution::Single)];
        let mut bench = Bench::new(vec![data("made")], vec![step(run, uses)]);
        bench.namespaces = namespaces;
        let outputs = committed(bench.world().run(vec![vec![]]));
        let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&outputs[0].parts[0].0.key);
        assert_eq!(tree(&part).keys().collect::<Vec<_>>(), ["f"]);
        assert!(!part.join("deep/s").exists());
    }
}
