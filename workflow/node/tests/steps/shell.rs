//! The shell of a step's command: where it ends, what comes before it, and scripts that name their interpreter.

use crate::Test;
use crate::bench::{Bench, committed, data, failed, step, tree, used};
use std::path::Path;
use tarn_node::{Namespaces, with_shells};
use tarn_types::event::RunErrorKind;
use tarn_types::layout::TierDir;
use tarn_types::workflow::{Distribution, Role, Step};

pub(crate) const TESTS: &[Test] = &[
    ("shell::what_fails_ends_the_step", what_fails_ends_the_step),
    (
        "shell::a_step_may_say_another_shell",
        a_step_may_say_another_shell,
    ),
    (
        "shell::functions_of_the_caller_work_in_a_prelude",
        functions_of_the_caller_work_in_a_prelude,
    ),
    (
        "shell::a_first_line_names_the_interpreter",
        a_first_line_names_the_interpreter,
    ),
    (
        "shell::a_node_without_the_shell_says_so",
        a_node_without_the_shell_says_so,
    ),
    (
        "shell::where_there_is_no_bash_sh_is_as_strict",
        where_there_is_no_bash,
    ),
];

fn both(mut test: impl FnMut(Namespaces)) {
    test(Namespaces::Auto);
    test(Namespaces::Off);
}

fn bench(step: Step, namespaces: Namespaces) -> Bench {
    let mut bench = Bench::new(vec![data("made")], vec![step]);
    bench.namespaces = namespaces;
    bench
}

fn making(run: &str) -> Step {
    step(run, vec![used(0, Role::Out, Distribution::Single)])
}

/// The files that the step has made, by name.
fn made(bench: &Bench) -> std::collections::BTreeMap<String, String> {
    let outputs = committed(bench.world().run(vec![vec![]]));
    let key = &outputs[0].parts[0].0.key;
    tree(&TierDir::new(&bench.path("tier"), "ws", "n0").part(key))
}

fn what_fails_ends_the_step() {
    for (run, expected) in [
        ("cat none; echo done > $TARN_made/x", "none"),
        ("cat none | sort > $TARN_made/x", "none"),
        (
            "echo x > $TARN_made/x; echo > $TARN_maed/x",
            "TARN_maed: unbound variable",
        ),
    ] {
        both(|namespaces| {
            let ended = bench(making(run), namespaces).world().run(vec![vec![]]);
            let (kind, message, log) = failed(ended);
            assert_eq!(kind, RunErrorKind::Exit, "{run}: {message}");
            assert!(log.contains(expected), "{run}: {log}");
        });
    }
    // A reader that has enough ends the writer: the error has a hint.
    let ended = bench(making("yes | head -n 1 > $TARN_made/x"), Namespaces::Auto);
    let (_, message, _) = failed(ended.world().run(vec![vec![]]));
    assert!(message.contains("status 141 (SIGPIPE"), "{message}");
}

fn a_step_may_say_another_shell() {
    both(|namespaces| {
        let mut plain = making("false; echo $none | false | cat > $TARN_made/x");
        plain.shell = Some("sh".into());
        assert_eq!(made(&bench(plain, namespaces))["x"], "");
        let program = "import os; open(os.environ['TARN_made'] + '/x', 'w').write('snake')";
        let mut other = making(program);
        other.shell = Some("python3 -B".into());
        assert_eq!(made(&bench(other, namespaces))["x"], "snake");
    });
}

fn functions_of_the_caller_work_in_a_prelude() {
    let mut loads = making("[[ $LOADED = gcc ]] && echo $LOADED $OPTION > $TARN_made/x");
    loads.prelude = Some("module load gcc\nsource $TARN_WORKFLOW_DIR/activate".into());
    let function = "() { eval \"LOADED=$2; echo $NOT_SET | false | true\"; export LOADED; }";
    loads
        .env
        .insert("BASH_FUNC_module%%".into(), function.into());
    let bench = bench(loads, Namespaces::Auto);
    bench.write("activate", "test -z $PS1\nOPTION=yes\n");
    assert_eq!(made(&bench)["x"], "gcc yes\n");
}

fn a_first_line_names_the_interpreter() {
    let run = "#!/usr/bin/env python3\nimport os, sys\nopen(os.environ['TARN_made'] + '/x', 'w').write(f\"{len(sys.argv)} {os.environ.get('LOADED')} {os.listdir()}\")";
    both(|namespaces| {
        let bare = making(run);
        assert_eq!(made(&bench(bare, namespaces))["x"], "1 None []");
        let mut loads = making(run);
        loads.prelude = Some("export LOADED=yes".into());
        assert_eq!(made(&bench(loads, namespaces))["x"], "1 yes []");
        // Its own first line sets how strict it is.
        let lax = making("#!/bin/sh\nfalse\necho $none > $TARN_made/x; cp -a . $TARN_made/scratch");
        let made = made(&bench(lax, namespaces));
        assert_eq!(made.keys().collect::<Vec<_>>(), ["x"]);
    });
}

fn a_node_without_the_shell_says_so() {
    both(|namespaces| {
        let mut wrong = making("echo > $TARN_made/x");
        wrong.shell = Some("none-such -e".into());
        let ended = bench(wrong, namespaces).world().run(vec![vec![]]);
        let (kind, message, _) = failed(ended);
        assert_eq!(kind, RunErrorKind::Launch);
        for word in ["`none-such`", "PATH", "shell = \"sh -eu\""] {
            assert!(message.contains(word), "{message}");
        }
    });
}

fn where_there_is_no_bash() {
    let mut bench = bench(making("echo $none > $TARN_made/x"), Namespaces::Auto);
    let folder = bench.path("bin");
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::symlink("/bin/sh", folder.join("sh")).expect("a link");
    let path = |folder: &Path| vec![("PATH".into(), folder.into())];
    with_shells(&mut bench.workflow, &path(&folder));
    assert_eq!(bench.workflow.steps[0].shell.as_deref(), Some("sh -eu"));
    let (kind, _, log) = failed(bench.world().run(vec![vec![]]));
    assert_eq!(kind, RunErrorKind::Exit, "{log}");
}
