//! A cluster whose user has a key, and searches of its nodes.

use std::time::Duration;
use tarn_tests::fixture::{self, Fixture};
use tarn_tests::slurm::{Cluster, wait_until};

/// A word that must be nowhere but in the user's own files.
pub(crate) const MARKER: &str = "kryptonite";

/// A node is lost after 10 s of silence, and a run that is cut takes its time.
const LATER: Duration = Duration::from_secs(120);

/// All that is on a node's tier and in its shared memory and `/tmp`, the job's own as well.
const LOOK: &str = r#"
places="/scm /dev/shm /tmp"
for p in $(pgrep -x 'tarnd|tarn'); do places="$places /proc/$p/root/dev/shm /proc/$p/root/tmp"; done
grep -rls -D skip WORD $places
true"#;

/// The files by which a user's processes show something to others: their paths. A process that has ended has no memory any
/// more, and anybody may open its files.
const SHOWN: &str = r#"
has_memory() { cat "$1/statm" 2> /dev/null | grep -q '[1-9]'; }
for p in /proc/[0-9]*; do
    [ "$(stat -c %U "$p" 2> /dev/null)" = alice ] || continue
    for f in environ maps mem auxv; do (: < "$p/$f") 2> /dev/null && has_memory "$p" && echo "$p/$f"; done
    for f in root cwd fd map_files; do ls "$p/$f/" > /dev/null 2>&1 && echo "$p/$f"; done
done
true"#;

/// The file with the bytes that are searched for: as an argument they would be found.
const NEEDLE: &str = "needle";

/// The processes whose arguments, variables, or (of tarnd) memory hold the needle's bytes; and whether that memory holds
/// what it must.
const PROCESSES: &str = r#"
import glob, re, sys
needle, sure = open("/shared/needle", "rb").read(), sys.argv[1].encode()
for process in glob.glob("/proc/[0-9]*"):
    try:
        name = open(process + "/comm").read().strip()
        for what in ("cmdline", "environ"):
            if needle in open(f"{process}/{what}", "rb").read():
                print(name, what)
        if name != "tarnd":
            continue
        found = set()
        with open(process + "/maps") as maps, open(process + "/mem", "rb") as memory:
            for line in maps:
                first, last, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
                if not mode.startswith("r") or "[v" in line:
                    continue
                try:
                    memory.seek(int(first, 16))
                    there = memory.read(int(last, 16) - int(first, 16))
                except OSError:
                    continue
                wanted = {"needle": (needle, bytes.fromhex(needle.decode())), "sure": (sure,)}
                found |= {name for name, all in wanted.items() if any(one in there for one in all)}
        print(*sorted(found))
    except (FileNotFoundError, ProcessLookupError):
        pass
"#;

/// A cluster, and `alice` with a key.
pub(crate) struct Vault {
    cluster: Cluster,
    nodes: usize,
}

impl Vault {
    /// Or a reason on stderr why there is none.
    pub(crate) fn new(nodes: usize, wants: &[&str]) -> Option<Self> {
        let cluster = fixture::cluster(nodes, &["tarn", "tarnd"], wants, &[])?;
        Some(Self { cluster, nodes })
    }

    pub(crate) fn fixture(&self, workflow: &str) -> Fixture<'_> {
        let fixture = Fixture::new(&self.cluster, "alice", workflow);
        fixture.write("in/word", &format!("{MARKER}\n"));
        for n in 1..=8 {
            fixture.write(&format!("in/f{n}"), &format!("piece {n}\n"));
        }
        let made = fixture.shell("tarn key new");
        assert!(made.contains("is in"), "{made}");
        fixture
    }

    fn on(&self, node: usize, user: &str, words: &[&str]) -> String {
        let output = self.cluster.node(node).exec(user, words);
        output.unwrap_or_else(|e| panic!("{e:#}")).trim().to_owned()
    }

    fn script(&self, node: usize, user: &str, script: &str) -> String {
        self.on(node, user, &["bash", "-c", script])
    }

    /// Nothing on any node, and nothing in the state folder, has the marker.
    #[track_caller]
    pub(crate) fn nothing_in_clear(&self, fixture: &Fixture<'_>, when: &str) {
        for node in 1..=self.nodes {
            let found = self.script(node, "root", &LOOK.replace("WORD", &format!("-e {MARKER}")));
            assert_eq!(found, "", "in clear on node{node} {when}");
        }
        let found = fixture.shell(&format!("grep -rls -D skip {MARKER} .tarn; true"));
        assert_eq!(found, "", "in clear in the state folder {when}");
    }

    /// The nodes where a step's own view of the tier has the marker.
    pub(crate) fn spaces(&self) -> Vec<usize> {
        let look = format!(
            "for p in $(pgrep -x tarn); do grep -rqs -D skip {MARKER} /proc/$p/root/scm && echo yes; done; true"
        );
        let nodes = 1..=self.nodes;
        nodes
            .filter(|n| self.script(*n, "root", &look).contains("yes"))
            .collect()
    }

    /// The secret of alice's newest key, in hexadecimal.
    fn secret(&self) -> String {
        let file = self.cluster.shared().join("home/alice/.config/tarn/key");
        let text = std::fs::read_to_string(file).expect("alice's key");
        text.split_whitespace().nth(3).expect("a secret").to_owned()
    }

    /// The view of another user of a node on the user's data, processes and keys.
    #[track_caller]
    pub(crate) fn another_user_sees_nothing(&self) {
        for node in 1..=self.nodes {
            let found = self.script(node, "bob", &LOOK.replace("WORD", &format!("-e {MARKER}")));
            assert_eq!(found, "", "bob reads it on node{node}");
            let there = self.script(node, "bob", "pgrep -u alice -x tarnd; true");
            assert_ne!(there, "", "bob sees that there are processes on node{node}");
            assert_eq!(self.script(node, "bob", SHOWN), "", "on node{node}");
            let keys = "cat /shared/home/alice/work/.tarn/keys/*/*/* /shared/home/alice/.config/tarn/key 2>/dev/null; true";
            assert_eq!(self.script(node, "bob", keys), "", "on node{node}");
        }
    }

    /// The user's key is in no argument, variable, file or memory of a process on a node; what is `sure` is in that of tarnd.
    #[track_caller]
    pub(crate) fn no_node_has_the_users_key(&self, sure: &str) {
        let needle = self.cluster.shared().join(NEEDLE);
        std::fs::write(&needle, self.secret()).expect("a needle");
        for node in 1..=self.nodes {
            let word = format!("-F -f /shared/{NEEDLE}");
            let found = self.script(node, "root", &LOOK.replace("WORD", &word));
            assert_eq!(found, "", "on node{node}");
            let found = self.on(node, "root", &["python3", "-c", PROCESSES, sure]);
            assert_eq!(found, "sure", "of node{node}");
        }
        std::fs::remove_file(needle).expect("the needle");
    }

    /// Keys of data in the state folder.
    pub(crate) fn keys(&self, fixture: &Fixture<'_>) -> usize {
        let count = fixture.shell("find .tarn/keys -type f 2>/dev/null | wc -l");
        count.trim().parse().expect("a number")
    }

    /// Of a run that is over nothing is on any tier, and no key is left.
    #[track_caller]
    pub(crate) fn leaves_nothing(&self, fixture: &Fixture<'_>) {
        for node in 1..=self.nodes {
            let left = self.script(node, "root", "find /scm -type f ! -name 'ledger*'");
            assert_eq!(left, "", "on node{node}");
        }
        assert_eq!(
            fixture.shell("find .tarn/keys -type f 2>/dev/null; true"),
            ""
        );
    }

    pub(crate) fn kill_tarnd(&self, node: usize) {
        self.script(node, "root", "pkill -KILL -x tarnd; true");
    }

    /// Changes a byte in the middle of the largest file on a node's tier.
    pub(crate) fn damage(&self, node: usize) {
        let script = r#"f=$(find /scm -path '*/parts/*' -type f -printf '%s %p\n' | sort -n | tail -1 | cut -d ' ' -f 2-)
            t=$(stat -c %y "$f"); printf '\377' | dd of="$f" bs=1 seek=$(($(stat -c %s "$f") - 30)) conv=notrunc status=none
            touch -d "$t" "$f"; echo "$f""#;
        assert!(!self.script(node, "root", script).is_empty());
    }

    pub(crate) fn wait_for(&self, fixture: &Fixture<'_>, name: &str) {
        let waited = wait_until(name, LATER, || fixture.path(name).exists());
        waited.unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Waits for a step to begin for the n-th time; on which node.
    pub(crate) fn wait_for_begin(&self, fixture: &Fixture<'_>, times: usize) -> usize {
        let began = || -> Vec<usize> {
            let text = std::fs::read_to_string(fixture.path("began")).unwrap_or_default();
            let number = |name: &str| name.strip_prefix("node").and_then(|n| n.parse().ok());
            text.lines().filter_map(number).collect()
        };
        let waited = wait_until("the second step", LATER, || began().len() >= times);
        waited.unwrap_or_else(|e| panic!("{e:#}"));
        began()[times - 1]
    }
}
