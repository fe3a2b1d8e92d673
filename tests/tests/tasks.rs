//! Tasks of programs: between nodes of a real Slurm allocation, with a tarnd of the user on each; and in steps of a run, on this
//! machine and in an allocation.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::programs::built;
use tarn_tests::slurm::run_for_output;
use tarn_tests::tree;

/// Run by salloc on the login node: the daemons, the program on the first node, the end.
const JOB: &str = r#"#!/bin/bash
set -e
srun --overlap -N2 -n2 --mem=200M bash -c 'mkdir -p /scm/alice && exec tarnd --socket /tmp/tarn.sock --state /tmp/tarnd \
    --space fast=/scm/alice:64MiB --peers peers.toml' 2> tarnd.log &
daemons=$!
code=0
srun --overlap -N1 -n1 -w node1 --mem=200M python3 -B drive.py || code=$?
kill -TERM $daemons
wait $daemons || true
exit $code
"#;

const DRIVE: &str = r#"
import filecmp, os, sys, time
sys.path.insert(0, "/shared/python")
import tarn

for _ in range(600):
    try:
        node = tarn.connect("/tmp/tarn.sock")
        break
    except tarn.Error:
        time.sleep(0.05)

def there(path):
    return tarn.Node("node2", "fast", path)

def patient(task):
    # The other one may not listen yet.
    for _ in range(600):
        try:
            return node.wait(task())
        except tarn.Error as e:
            if e.code != tarn.Code.IO:
                raise
            time.sleep(0.05)

memory = node.memory(8 << 20)
memory.data[:] = os.urandom(8 << 20)
saved = patient(lambda: node.copy(memory, there("dump")))
again = node.memory(8 << 20)
loaded = node.wait(node.copy(there("dump"), again))
assert loaded.checksum == saved.checksum and again.data[:] == memory.data[:]

home = os.path.expanduser("~/work")
node.wait(node.copy(home + "/in", there("tree")))
node.wait(node.copy(there("tree"), tarn.Space("fast", "back"), verify="readback"))
same = filecmp.dircmp(home + "/in", "/scm/alice/back")
assert same.common_files == ["a", "b"] and not same.diff_files and not same.left_only, same.report()
node.wait(node.move(tarn.Space("fast", "back"), there("moved"), durable=True))
assert os.listdir("/scm/alice") == []
try:
    node.wait(node.copy(home + "/large", there("large")))
    sys.exit("it was taken")
except tarn.Error as e:
    assert e.code == tarn.Code.NOSPACE and "node2" in str(e), e
slow = node.copy(there("dump"), tarn.Space("fast", "slow"), rate=1_000_000)
node.pause([slow])
assert node.outcomes([slow], timeout=0.2) == []
node.cancel([slow])
print("all of it")
"#;

/// A step whose program has its data moved by tarnd while it computes, and does not wait for the last of it.
const STEP: &str = r#"
import os, sys
sys.path.insert(0, sys.argv[1])
import tarn

with tarn.connect() as node:
    spaces = {s.name: s for s in node.spaces()}
    assert set(spaces) == {"raw", "made", "scratch"}, spaces
    assert not spaces["raw"].writable and spaces["made"].writable and not spaces["made"].manageable, spaces
    node.wait(node.copy(tarn.Space("raw", "a"), tarn.Space("made", "deep/a")))
    node.wait(node.copy(os.environ["TARN_WORKFLOW_DIR"] + "/in/b", tarn.Space("scratch", "b")))
    assert os.path.getsize(os.environ["TARN_SCRATCH"] + "/b") == 1000
    try:
        node.copy(tarn.Space("made", "deep/a"), tarn.Space("raw", "planted"))
        sys.exit("it was taken")
    except tarn.Error as e:
        assert e.code == tarn.Code.DENIED, e
    memory = node.memory(1 << 20)
    memory.data[:5] = b"hello"
    node.move(tarn.Space("scratch", "b"), tarn.Space("made", "b"))
    node.copy(memory, tarn.Space("made", "dump"), rate=2_000_000)
"#;

/// The workflow of that step; `{}` is the folder of the Python binding, `[]` libtarn.
const WORKFLOW: &str = r#"
name = "steps"

[data.raw]
source = "in"

[data.made]
dest = "out"

[[step]]
name = "make"
run = "TARN_LIBRARY=[] TARN_OTHER=/tmp tarnd --step -- /usr/bin/python3 -B $TARN_WORKFLOW_DIR/step.py {}"
in = ["raw"]
out = ["made"]

[[step]]
name = "fails"
run = "! tarnd --step -- sh -c 'exit 7' && tarnd --step -- sh -c 'test -S $TARN_SOCKET' && ls -A $TARN_SCRATCH > $TARN_left/list"
out = ["left"]

[data.left]
dest = "left"
"#;

fn write_step(folder: &Path, binding: &Path, library: &Path) {
    let workflow = WORKFLOW.replace("{}", &binding.display().to_string());
    let workflow = workflow.replace("[]", &library.display().to_string());
    for (name, text) in [("wf.toml", &*workflow), ("step.py", STEP)] {
        std::fs::write(folder.join(name), text).expect("a file");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(folder.join(name), open).expect("its mode");
    }
}

fn check_step(folder: &Path, output: &str) {
    let read = |name: &str| {
        std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}\n{output}"))
    };
    assert_eq!(read("out/deep/a"), b"a\n");
    assert_eq!(read("out/b").len(), 1000);
    let dump = read("out/dump");
    assert!(
        dump.len() == 1 << 20 && dump.starts_with(b"hello"),
        "{output}"
    );
    assert_eq!(
        read("left/list"),
        b"",
        "tarnd leaves nothing in the scratch folder"
    );
}

#[test]
fn programs_of_steps_reach_their_data() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("in")).expect("a folder");
    std::fs::write(dir.path().join("in/a"), "a\n").expect("a file");
    std::fs::write(dir.path().join("in/b"), [7; 1000]).expect("a file");
    let library = built("libtarn.so").unwrap_or_else(|e| panic!("{e:#}"));
    built("tarnd").unwrap_or_else(|e| panic!("{e:#}"));
    write_step(
        dir.path(),
        &tree::root().join("bindings/python/python"),
        &library,
    );
    let tier = format!("mem={}:256MiB", dir.path().join("tier").display());
    std::fs::create_dir(dir.path().join("tier")).expect("a folder");
    let tarn = built("tarn").unwrap_or_else(|e| panic!("{e:#}"));
    let output = Command::new(tarn)
        .args(["run", "wf.toml", "--local", "--tier", &tier])
        .current_dir(dir.path())
        .env_remove("TARN_STATE")
        .output()
        .expect("tarn");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{printed}");
    check_step(dir.path(), &printed);
}

/// A step of two nodes, on each of which a program takes the other's files from its scratch folder.
const SWAP: &str = r#"
name = "swap"

[data.got]
dest = "got"
scatter = "rank{rank}"

[[step]]
name = "swap"
nodes = 2
tasks = 2
run = "TARN_LIBRARY=/shared/bin/libtarn.so $TARN_WORKFLOW_DIR/everywhere.sh /usr/bin/python3 -B $TARN_WORKFLOW_DIR/swap.py"
out = ["got:scatter"]
"#;

const SWAP_PROGRAM: &str = r#"
import os, sys, time
sys.path.insert(0, "/shared/python")
import tarn

with open(os.environ["TARN_HOSTFILE"]) as file:
    names = [line.split()[0] for line in file]
rank = names.index(os.environ["TARN_NODE"])
other = 1 - rank

def meet(what):
    at = os.environ["TARN_WORKFLOW_DIR"] + "/" + what
    open(at + str(rank), "w").close()
    while not os.path.exists(at + str(other)):
        time.sleep(0.02)

with open(os.environ["TARN_SCRATCH"] + "/mine", "w") as file:
    file.write(names[rank])
os.mkdir(os.environ["TARN_got"] + f"/rank{rank}")
with tarn.connect() as node:
    meet("written")
    node.wait(node.copy(tarn.Node(names[other], "scratch", "mine"), tarn.Space("got", f"rank{rank}/from")))
    meet("read")
"#;

/// The script that docs/guide/tasks.md has for it.
fn everywhere() -> String {
    let page = std::fs::read_to_string(tree::root().join("docs/guide/tasks.md")).expect("the page");
    let (_, script) = page
        .split_once("```sh\n#!/bin/sh\n# everywhere.sh")
        .expect("the script");
    let (script, _) = script.split_once("```").expect("its end");
    format!("#!/bin/sh\n# everywhere.sh{script}")
}

#[test]
fn programs_of_one_step_reach_each_other() {
    let programs = ["tarn", "tarnd", "libtarn.so"];
    let Some(cluster) = fixture::cluster(2, &programs, &[], &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", SWAP);
    fixture.write("swap.py", SWAP_PROGRAM);
    fixture.write("everywhere.sh", &everywhere());
    let output = fixture.run("-N2 -n16", "tarn run --tier scm=/scm/alice:64MiB wf.toml");
    let got = [0, 1].map(|rank| fixture.read(&format!("got/rank{rank}/from")));
    assert_eq!(got, ["node2", "node1"], "{output}");
    let left = std::fs::read_dir(&fixture.folder).expect("the folder");
    let peers = |e: std::io::Result<std::fs::DirEntry>| {
        let name = e.expect("an entry").file_name();
        name.to_string_lossy().starts_with(".peers")
    };
    assert_eq!(left.filter_map(|e| peers(e).then_some(())).count(), 0);
}

#[test]
fn programs_reach_dataspaces_of_other_nodes() {
    let programs = ["tarn", "tarnd", "libtarn.so"];
    let Some(cluster) = fixture::cluster(2, &programs, &[], &[]) else {
        return;
    };
    let make = "mkdir -p work/in && echo a > work/in/a && head -c 1000000 /dev/urandom > work/in/b && \
                head -c 68000000 /dev/zero > work/large && umask 077 && \
                printf 'key = \"%s\"\\n[nodes.node1]\\naddress = \"node1:7411\"\\n[nodes.node2]\\naddress = \"node2:7411\"\\nrate = \"1 GB/s\"\\n' \
                $(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n') > work/peers.toml";
    run_for_output(&mut cluster.command("alice", &["bash", "-c", make])).expect("files");
    let work = cluster.shared().join("home/alice/work");
    for (name, text) in [("job.sh", JOB), ("drive.py", DRIVE)] {
        let path = work.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let line =
        "cd work && TARN_LIBRARY=/shared/bin/libtarn.so exec salloc -Q -N2 --mem=500M ./job.sh";
    let output = cluster.command("alice", &["bash", "-c", line]).output();
    let output = output.expect("salloc");
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&both);
    let log = std::fs::read_to_string(work.join("tarnd.log")).unwrap_or_default();
    assert!(
        output.status.success() && text.contains("all of it"),
        "{text}\n{log}"
    );
    // And in steps of a run over the nodes of an allocation.
    let bin = Path::new("/shared/bin");
    write_step(&work, Path::new("/shared/python"), &bin.join("libtarn.so"));
    let line = "cd work && printf 'a\\n' > in/a && head -c 1000 /dev/zero > in/b && \
                exec salloc -Q -N2 --mem=500M tarn run wf.toml";
    let output = cluster.command("alice", &["bash", "-c", line]).output();
    let output = output.expect("salloc");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{printed}");
    check_step(&work, &printed);
    let look = cluster.node(2).exec(
        "root",
        &["bash", "-c", "cd /scm/alice && ls && cat tree/a moved/a"],
    );
    let found = look.unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(
        found.split_whitespace().collect::<Vec<_>>(),
        ["dump", "moved", "tree", "a", "a"]
    );
}
