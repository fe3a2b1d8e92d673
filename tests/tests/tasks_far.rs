//! Tasks between the tarnds of two nodes of a real cluster, on bad days: the link is down for a minute, and thousands wait.

use std::time::{Duration, Instant};
use tarn_tests::fixture;
use tarn_tests::slurm::{Cluster, run_for_output, wait_until};

const SOON: Duration = Duration::from_secs(120);
const LATER: Duration = Duration::from_secs(400);
/// Of which each link is shaped to so much, and the tasks are slower: Mbit/s.
const LINK: u32 = 400;

/// The beginning of both programs: the connection to the tarnd of the first node, and its places.
const BEGIN: &str = r#"
import os, sys, time
sys.path.insert(0, "/shared/python")
import tarn

for _ in range(600):
    try:
        node = tarn.connect("/tmp/tarn.sock")
        break
    except tarn.Error:
        time.sleep(0.05)

def here(path):
    return tarn.Space("fast", path)

def there(path):
    return tarn.Node("node2", "fast", path)

def say(word):
    open("/shared/home/alice/" + word, "w").close()
"#;

/// One of each way is under way when the link is cut, and one is submitted while it is down.
const CUT: &str = r#"
node.wait(node.copy("/shared/home/alice/data", here("data")))
while True:
    try:
        node.wait(node.copy("/shared/home/alice/data", there("data")))
        break
    except tarn.Error:
        time.sleep(0.05)
ids = [node.copy(there("data"), here("pulled"), durable=True, rate=2_000_000),
       node.move(here("data"), there("pushed"), durable=True, rate=2_000_000)]
while not all(s.done > 2_000_000 for s in node.status(ids)):
    time.sleep(0.02)
say("moving")
while not os.path.exists("/shared/home/alice/cut"):
    time.sleep(0.02)
ids.append(node.copy("/shared/home/alice/data", there("late"), durable=True))
for id in ids:
    node.wait(id, timeout=400)
say("over")
"#;

/// So many small files are pulled and pushed, all queued at once, half of them durable.
const MANY: &str = r#"
count = int(sys.argv[1])
os.mkdir("/scm/alice/in")
for n in range(100):
    with open(f"/scm/alice/in/{n}", "wb") as f:
        f.write(bytes([n]) * 1000)
while True:
    try:
        node.wait(node.copy(here("in"), there("in")))
        break
    except tarn.Error:
        time.sleep(0.05)
began = time.time()
tasks = []
for n in range(count):
    small = f"in/{n % 100}"
    way = (there(small), here(f"from/{n}")) if n % 2 else (here(small), there(f"to/{n}"))
    tasks.append(tarn.task("copy", *way, durable=n % 4 < 2))
ids = []
for at in range(0, count, 256):
    ids += node.submit(tasks[at:at + 256])
queued = time.time()
left = [id for id in ids if not isinstance(id, tarn.Error)]
assert len(left) == count, "some were refused"
for at in range(0, count, 1024):
    for outcome in node.outcomes(left[at:at + 1024], timeout=300):
        assert outcome.code == 0, outcome
print(f"{count} tasks queued in {queued - began:.1f} s, done in {time.time() - began:.1f} s")
assert sum(len(f) for _, _, f in os.walk("/scm/alice/from")) == count // 2
say("over")
"#;

/// Two nodes with a tarnd each, outside of Slurm, as a user starts them by hand. All ends with the cluster.
struct Pair(Cluster);

impl Pair {
    fn up() -> Option<Self> {
        let cluster = fixture::cluster(2, &["tarnd", "libtarn.so"], &[], &[])?;
        let make = "umask 077 && head -c 20000000 /dev/urandom > data && printf 'key = \"%s\"\\n\
                    [nodes.node1]\\naddress = \"node1:7411\"\\n[nodes.node2]\\naddress = \"node2:7411\"\\n' \
                    $(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n') > peers.toml";
        run_for_output(&mut cluster.command("alice", &["bash", "-c", make])).expect("files");
        let pair = Self(cluster);
        for node in [1, 2] {
            pair.on(node, "install -d -o alice /scm/alice");
            let serve = "tarnd --socket /tmp/tarn.sock --state /tmp/tarnd --space fast=/scm/alice:256MiB --peers peers.toml";
            pair.begin(node, serve, &format!("node{node}.log"));
        }
        Some(pair)
    }

    /// Starts a command of the user's that nobody waits for; its output goes to a file in the home.
    fn begin(&self, node: usize, command: &str, log: &str) {
        let line = format!("setsid -f {command} > {log} 2>&1 < /dev/null");
        let begun = self.0.node(node).exec("alice", &["bash", "-c", &line]);
        begun.unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Starts a program on the first node, which prints `over` at its end.
    fn drive(&self, text: &str, words: &str) {
        let path = self.0.shared().join("home/alice/drive.py");
        std::fs::write(&path, format!("{BEGIN}{text}")).expect("a program");
        let line = format!("env TARN_LIBRARY=/shared/bin/libtarn.so python3 -B drive.py {words}");
        self.begin(1, &line, "drive.log");
    }

    fn read(&self, name: &str) -> String {
        let path = self.0.shared().join("home/alice").join(name);
        std::fs::read_to_string(path).unwrap_or_default()
    }

    fn has_printed(&self, word: &str) -> bool {
        self.0.shared().join("home/alice").join(word).exists()
    }

    fn logs(&self) -> String {
        ["drive.log", "node1.log", "node2.log"]
            .map(|n| self.read(n))
            .concat()
    }

    /// Until the program has printed this.
    fn wait(&self, word: &str, timeout: Duration) {
        let stopped = || self.read("drive.log").contains("Error");
        let waited = wait_until(word, timeout, || self.has_printed(word) || stopped());
        let waited = waited.map_err(|e| format!("{e:#}"));
        assert!(
            waited.is_ok() && self.has_printed(word),
            "{waited:?}\n{}",
            self.logs()
        );
    }

    fn on(&self, node: usize, script: &str) -> String {
        let found = self.0.node(node).exec("root", &["bash", "-c", script]);
        found.unwrap_or_else(|e| panic!("{e:#}"))
    }
}

/// The link is cut in the middle of durable tasks both ways, and back a minute later: all of them end well.
#[test]
fn durable_tasks_outlive_a_cut_link() {
    let Some(pair) = Pair::up() else { return };
    let node = pair.0.node(2);
    node.shape_link(Some(LINK))
        .unwrap_or_else(|e| panic!("{e:#}"));
    pair.drive(CUT, "");
    pair.wait("moving", SOON);
    node.cut_link().unwrap_or_else(|e| panic!("{e:#}"));
    let cut = Instant::now();
    pair.on(1, "touch /shared/home/alice/cut");
    let minute = Duration::from_secs(60);
    std::thread::sleep(minute.saturating_sub(cut.elapsed()));
    assert!(!pair.has_printed("over"), "{}", pair.logs());
    node.heal_link().unwrap_or_else(|e| panic!("{e:#}"));
    pair.wait("over", LATER);
    eprintln!("all over {:.1?} after the cut", cut.elapsed());
    let sums = "cd /scm/alice && sha256sum pulled pushed late 2> /dev/null; find . -name '.tarn-*'; sha256sum data 2> /dev/null; true";
    let sum = |text: &str| {
        text.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let wanted = sum(&pair.on(1, "sha256sum /shared/home/alice/data"));
    let (first, second) = (pair.on(1, sums), pair.on(2, sums));
    let names = |text: &str| -> Vec<(String, String)> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let pairs = words
            .chunks(2)
            .map(|c| (c[0].clone(), c[c.len() - 1].clone()));
        pairs.collect()
    };
    let is = |all: &[&str]| -> Vec<(String, String)> {
        let one = |name: &&str| (wanted.clone(), (*name).to_owned());
        all.iter().map(one).collect()
    };
    assert_eq!(names(&first), is(&["pulled"]));
    assert_eq!(names(&second), is(&["pushed", "late", "data"]));
}

/// Thousands are queued at one node, half of them each way and half of them durable: as many as `TARN_MANY` has (`make
/// soak`: 10,000).
#[test]
fn thousands_of_transfers_wait_between_two_nodes() {
    let Some(pair) = Pair::up() else { return };
    let count = std::env::var("TARN_MANY").unwrap_or("3000".into());
    pair.drive(MANY, &count);
    pair.wait("over", LATER);
    eprintln!("{}", pair.read("drive.log").trim());
    let count: usize = count.parse().expect("a number");
    let there = pair.on(
        2,
        "ls /scm/alice/to | wc -l; find /scm/alice -name '.tarn-*' | wc -l",
    );
    let there: Vec<&str> = there.split_whitespace().collect();
    assert_eq!(there, [(count / 2).to_string().as_str(), "0"]);
}
