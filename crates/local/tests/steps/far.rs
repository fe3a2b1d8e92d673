//! Steps over two nodes that two worlds own, which reach each other by messages only.

use crate::Test;
use crate::bench::{
    Bench, Machine, committed, data, failed, held, namespaces_allowed, ranked, spot, tree, used,
};
use crate::multi::{SUM, two, whole, with_helper};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tarn_base::action::{Do, Held};
use tarn_base::cluster::Host;
use tarn_base::event::{Ended, Event, FailureKind, Usage};
use tarn_base::id::{InstanceId, NodeId, StepId};
use tarn_base::layout::TierDir;
use tarn_base::manifest::Manifest;
use tarn_base::nodes::{Attempt, Own};
use tarn_base::part::{PartInfo, Place};
use tarn_base::units::SECOND;
use tarn_base::workflow::{Dataset, Distribution, Role, Use};
use tarn_movers::Trees;
use tarn_ports::{
    Control, CopyJob, CopyReport, Mates, Mover, MoverError, Nodes, TreeCapabilities, World,
};

pub(crate) const TESTS: &[Test] = &[
    ("far::a_scattered_tree_is_changed_and_merged", scattered),
    ("far::broadcast_outputs_must_agree", broadcast),
    ("far::conflicting_files_name_both_nodes", conflict),
    ("far::single_outputs_lie_on_the_first_node", single),
    ("far::exec_passes_streams_status_and_paths", exec),
    ("far::exec_holds_back_who_writes_too_fast", flow),
    ("far::exec_ends_what_nobody_waits_for", gone),
    ("far::mpi_messages_cross_the_nodes", mpi),
    ("far::nodes_of_several_hosts_use_the_network", network),
    ("far::a_step_past_its_time_ends_on_both_nodes", time_limit),
    ("far::a_stopped_step_ends_on_both_nodes", stopped),
    ("far::a_lost_mate_ends_the_attempt", mate_lost),
    ("far::a_lost_leader_ends_it_at_the_mate", leader_lost),
    ("far::what_was_published_goes_with_the_leader", publishing),
    (
        "far::a_publish_that_fails_at_the_mate_is_taken_back",
        unpublished,
    ),
    ("far::a_missing_replica_at_the_mate_is_told", missing),
    ("far::a_mate_that_knows_nothing_says_so", unknown),
    ("far::a_world_that_ends_leaves_no_mate_waiting", ending),
];

/// A message on its way: from, to, about, what.
type Letter = (NodeId, NodeId, Attempt, Vec<u8>);

/// Sends for one node.
struct Wire {
    from: NodeId,
    letters: Sender<Letter>,
    cut: Arc<AtomicBool>,
}

impl Mates for Wire {
    fn send(&self, to: NodeId, step: Attempt, message: Vec<u8>) -> bool {
        !self.cut.load(Ordering::SeqCst)
            && self.letters.send((self.from, to, step, message)).is_ok()
    }
}

/// Node 0, which leads, and node 1. Each world believes the other's tier to be where nothing is.
struct Pair {
    leader: Option<Machine>,
    mate: Option<Machine>,
    letters: Receiver<Letter>,
    cut: Arc<AtomicBool>,
    told: Vec<Event>,
}

impl Pair {
    fn new(bench: &Bench) -> Self {
        Self::with(bench, [&bench.mover, &bench.mover])
    }

    fn with(bench: &Bench, movers: [&Arc<dyn Mover>; 2]) -> Self {
        let (sender, letters) = channel();
        let cut = Arc::new(AtomicBool::new(false));
        let world = |own: usize| {
            let mut config = bench.config("ws");
            config.own = Own::Some(BTreeSet::from([NodeId(own as u32)]));
            config.mates = Some(Arc::new(Wire {
                from: NodeId(own as u32),
                letters: sender.clone(),
                cut: Arc::clone(&cut),
            }));
            config.mover = Arc::clone(movers[own]);
            config.cluster.nodes[1 - own].tiers[0].root = bench.path(&format!("elsewhere{own}"));
            Machine::new(config)
        };
        Self {
            leader: Some(world(0)),
            mate: Some(world(1)),
            letters,
            cut,
            told: Vec::new(),
        }
    }

    fn leader(&mut self) -> &mut Machine {
        self.leader.as_mut().expect("the leader")
    }

    fn mate(&mut self) -> &mut Machine {
        self.mate.as_mut().expect("the mate")
    }

    /// Carries messages until the leader says how the attempt has ended.
    fn ended(&mut self) -> (Ended, Usage) {
        self.until(|pair| {
            let event = pair.leader().local.poll()?.1;
            match event {
                Event::Ended { ended, usage, .. } => Some((ended, usage)),
                other => {
                    pair.told.push(other);
                    None
                }
            }
        })
    }

    fn until<T>(&mut self, mut check: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.carry();
            if let Some(found) = check(self) {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it hangs");
        }
    }

    /// Hands over what comes within a moment.
    fn carry(&mut self) {
        let first = self.letters.recv_timeout(Duration::from_millis(1)).ok();
        let more: Vec<Letter> = first.into_iter().chain(self.letters.try_iter()).collect();
        for (from, to, step, message) in more {
            let world = match to {
                NodeId(0) => self.leader.as_mut(),
                _ => self.mate.as_mut(),
            };
            if let Some(world) = world.filter(|_| !self.cut.load(Ordering::SeqCst)) {
                world.local.mate(from, step, &message);
            }
        }
    }

    /// The two nodes do not hear of each other any more.
    fn part(&mut self) {
        self.cut.store(true, Ordering::SeqCst);
        self.leader().local.mate_lost(NodeId(1));
        self.mate().local.mate_lost(NodeId(0));
    }

    /// Waits until a file is there.
    fn there(&mut self, path: &Path) {
        self.until(|_| path.exists().then_some(()));
    }

    /// Lists dataset 0 and brings its ranks and what is common to their nodes.
    fn stage(&mut self) -> Vec<Vec<Held>> {
        let infos = self.leader().list(0).expect("a source");
        let mut views = Vec::new();
        for node in 0..2 {
            // Common and its own rank; the classes sort ranks first.
            let own = [infos[node as usize].clone(), infos[2].clone()];
            self.bring(node, &own);
            views.push(held(0, 0, &own, node));
        }
        views
    }

    fn bring(&mut self, node: u32, infos: &[PartInfo]) {
        let world = match node {
            0 => self.leader(),
            _ => self.mate(),
        };
        let known = infos
            .iter()
            .map(|i| (crate::bench::part_ref(0, 0, i.seq), i.clone()));
        world.local.know(known.collect()).unwrap();
        let to = Place::Node(spot(node));
        world
            .transfer(0, 0, infos, &Place::Source, &to)
            .expect("a transfer");
    }
}

fn bench(datasets: Vec<Dataset>, run: &str, uses: Vec<Use>) -> Option<Bench> {
    let mut bench = Bench::new(datasets, vec![two(run, uses)]);
    bench.nodes = 2;
    with_helper(&mut bench);
    namespaces_allowed(&bench.world()).then_some(bench)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|e| e.path()).collect()
}

/// No work folder and, where nothing was committed, no replica; and nobody has touched what is not his.
fn nothing_left(bench: &Bench, replicas: bool) {
    for node in ["n0", "n1"] {
        let dir = TierDir::new(&bench.path("tier"), "ws", node);
        assert_eq!(entries(&dir.work()), Vec::<PathBuf>::new(), "{node}");
        if !replicas {
            assert_eq!(entries(&dir.parts()), Vec::<PathBuf>::new(), "{node}");
        }
    }
    for other in ["elsewhere0", "elsewhere1"] {
        assert!(!bench.path(other).join("ws/n0").exists(), "{other}");
        assert!(!bench.path(other).join("ws/n1").exists(), "{other}");
    }
}

fn scattered() {
    let run = r#"for n in n0 n1; do "$HELPER" exec $n -- sh -c '
        r=${TARN_NODE#n}; cd $TARN_case; test ! -e p$((1-r)) || exit 1
        echo changed-$r > p$r/f; rm p$r/old; echo new-$r > made-$r; cat common'; done
        rm $TARN_case/gone"#;
    let uses = vec![used(0, Role::Inout, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![ranked("case")], run, uses) else {
        return;
    };
    for name in ["p0/f", "p1/f", "p0/old", "p1/old", "common", "gone"] {
        bench.write(&format!("raw/{name}"), name);
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    let mut pair = Pair::new(&bench);
    let views = pair.stage();
    pair.leader().begin(0, 1, &[0, 1], vec![views]);
    let outputs = committed(pair.ended());
    let expected = [
        ("common", "common", vec![0, 1]),
        ("made-0", "new-0\n", vec![0]),
        ("made-1", "new-1\n", vec![1]),
        ("p0/f", "changed-0\n", vec![0]),
        ("p1/f", "changed-1\n", vec![1]),
    ];
    let expected = expected
        .into_iter()
        .map(|(n, t, at)| (n.to_owned(), (t.to_owned(), at)));
    assert_eq!(whole(&bench, &outputs[0]), expected.collect());
    for (info, _) in &outputs[0].parts {
        assert!(info.stored > 0, "{info:?}");
    }
    nothing_left(&bench, true);
}

fn broadcast() {
    for (text, agree) in [("a", true), ("b", false)] {
        let run = format!(
            r#"echo a > $TARN_made/f; "$HELPER" exec n1 -- sh -c 'echo {text} > $TARN_made/f'"#
        );
        let uses = vec![used(0, Role::Out, Distribution::Broadcast)];
        let Some(bench) = bench(vec![data("made")], &run, uses) else {
            return;
        };
        let mut pair = Pair::new(&bench);
        pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
        let ended = pair.ended();
        if !agree {
            assert_eq!(failed(ended).0, FailureKind::Conflict);
            nothing_left(&bench, false);
            continue;
        }
        let outputs = committed(ended);
        let all = whole(&bench, &outputs[0]);
        assert_eq!(all["f"], ("a\n".to_owned(), vec![0, 1]));
        nothing_left(&bench, true);
    }
}

fn conflict() {
    let run = r#"echo a > $TARN_made/same; "$HELPER" exec n1 -- sh -c 'echo b > $TARN_made/same'"#;
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let Some(bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, FailureKind::Conflict);
    for word in ["`same`", "`n0`", "`n1`"] {
        assert!(message.contains(word), "{message}");
    }
    nothing_left(&bench, false);
}

fn single() {
    // The mate spends time and leaves something; its parts of the sums are told.
    let run = r#"echo one > $TARN_made/f; echo x > left-0
        "$HELPER" exec n1 -- sh -c 'test -z "$(ls $TARN_made 2>/dev/null)" || exit 1
            echo yy > left-1; i=0; while test $i -lt 200000; do i=$((i+1)); done'"#;
    let uses = vec![used(0, Role::Out, Distribution::Single)];
    let Some(bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
    let (ended, usage) = pair.ended();
    assert!(usage.user > 20_000_000, "{usage:?}");
    let Ended::Committed {
        outputs,
        undeclared,
    } = ended
    else {
        panic!("{ended:?}");
    };
    assert_eq!(outputs[0].parts[0].1, [spot(0)]);
    assert_eq!((undeclared.files, undeclared.bytes), (2, 5));
    assert_eq!(undeclared.names, ["left-0", "left-1"]);
    nothing_left(&bench, true);
}

fn exec() {
    let run = r#"
        test "$(echo in | "$HELPER" exec n1 -- cat)" = in || exit 11
        "$HELPER" exec n1 -- sh -c 'exit 9'; test $? = 9 || exit 12
        "$HELPER" exec n1 -- sh -c 'kill -TERM $$'; test $? = 143 || exit 13
        "$HELPER" exec n1 -- pwd | grep -qx "$TARN_SCRATCH" || exit 14
        test "$("$HELPER" exec n1 echo a '$TARN_NODE;' hostname)" = "a n1
n1" || exit 15
        "$HELPER" exec n7 -- true; test $? = 255 || exit 16
        "$HELPER" exec n1 -- /no/such/program; test $? = 127 || exit 17
        MINE=here "$HELPER" exec n1 -- sh -c 'test $MINE = here' || exit 18
        echo own > scratch-of-0; "$HELPER" exec n1 -- ls scratch-of-0 && exit 19
        "$HELPER" exec n1 -- sh -c 'cat $TARN_HOSTFILE; echo $TARN_HOSTFILE' > hosts || exit 20
        grep -q 'n1 slots=1' hosts && grep -q ws/n1/work hosts || exit 21
        test "$("$HELPER" exec n1 -- sh -c 'echo out; echo err >&2' 2>&1 >/dev/null)" = err || exit 22
        test "$("$HELPER" exec n1 -- sh -c '"$HELPER" exec n1 -- echo self')" = self || exit 23
        for i in 1 2 3 4 5 6 7 8; do "$HELPER" exec n1 -- echo $i & done > many; wait
        test $(sort many | tr -d '\n') = 12345678 || exit 24
        true"#;
    let Some(bench) = bench(vec![], run, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
}

fn flow() {
    // Both ways at once, far more than a window; who closes early is told so, and so is who goes on writing.
    let run = r#"
        head -c 30000000 /dev/urandom > big
        "$HELPER" exec n1 -- cat < big | cmp - big || exit 11
        test $("$HELPER" exec n1 -- yes | head -c 300000 | wc -c) = 300000 || exit 12
        yes | "$HELPER" exec n1 -- head -c 10 | wc -c | grep -qx 10 || exit 13
        "$HELPER" exec n1 -- sh -c 'head -c 5000000 /dev/zero; sleep 0.2; echo end >&2' 2> last | (sleep 0.3; wc -c) | grep -qx 5000000 || exit 14
        grep -qx end last || exit 15
        "$HELPER" exec n1 -- sh -c '(sleep 0.3; echo late) & echo early' > both; sleep 0.6
        test "$(tr '\n' ' ' < both)" = "early late " || exit 16"#;
    let Some(bench) = bench(vec![], run, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
}

fn gone() {
    let run = r#"
        "$HELPER" exec n1 -- sh -c 'trap "echo told > $TARN_WORKFLOW_DIR/told; exit" TERM; echo up; while :; do sleep 0.05; done' > up &
        while ! test -s up; do sleep 0.02; done
        kill -9 $!
        while ! test -e $TARN_WORKFLOW_DIR/told; do sleep 0.02; done
        "$HELPER" exec n1 -- sh -c 'sleep 0.5; echo late > $TARN_WORKFLOW_DIR/late' & sleep 0.1"#;
    let Some(bench) = bench(vec![], run, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    committed(pair.ended());
    std::thread::sleep(Duration::from_millis(700));
    assert!(!bench.path("late").exists());
}

fn mpi() {
    let there = |p: &str| Path::new(p).exists();
    if !there("/usr/bin/mpirun") || !there("/usr/bin/python3") {
        eprintln!("skipped: mpirun or python3 is not installed");
        return;
    }
    let uses = vec![used(0, Role::Out, Distribution::Scatter)];
    let run = "mpirun /usr/bin/python3 $TARN_WORKFLOW_DIR/sum.py";
    let Some(mut bench) = bench(vec![data("made")], run, uses) else {
        return;
    };
    bench.write("sum.py", SUM);
    bench.workflow.steps[0].tasks = 3;
    bench.workflow.steps[0].time = Some(20 * SECOND);
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![]]);
    let outputs = committed(pair.ended());
    let rank = |r: u32| (r.to_string(), ("111".to_owned(), vec![r / 2]));
    assert_eq!(
        whole(&bench, &outputs[0]),
        (0..3).map(rank).collect::<BTreeMap<_, _>>()
    );
}

fn network() {
    let run = "env | grep -c OMPI_MCA_..._tcp_if_include; true";
    for (hosts, expected) in [(1, "2\n"), (2, "0\n")] {
        let Some(bench) = bench(vec![], run, vec![]) else {
            return;
        };
        let mut config = bench.config("ws");
        let host = Host {
            name: "h1".into(),
            ..config.cluster.hosts[0].clone()
        };
        config.cluster.hosts.push(host);
        config.cluster.nodes[1].host = hosts - 1;
        let mut world = Machine::new(config);
        world.begin(0, 1, &[0, 1], vec![]);
        committed(world.ended());
        let log = bench.state().step_log("r1", "work-0", 1);
        assert_eq!(std::fs::read_to_string(log).unwrap(), expected);
    }
}

/// Something that runs on both nodes, and says on the second that it does. It would be late if it were not ended.
const LONG: &str = r#""$HELPER" exec n1 -- sh -c 'echo > $TARN_WORKFLOW_DIR/up; sleep 2; echo > $TARN_WORKFLOW_DIR/late; sleep 60'"#;

fn late(bench: &Bench) {
    std::thread::sleep(Duration::from_millis(2300));
    assert!(!bench.path("late").exists());
}

fn time_limit() {
    let Some(mut bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    bench.workflow.steps[0].time = Some(SECOND / 2);
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    assert_eq!(failed(pair.ended()).0, FailureKind::TimedOut);
    nothing_left(&bench, false);
    late(&bench);
}

fn stop() -> Do {
    let step = StepId(0);
    let instance = InstanceId { step, index: 0 };
    Do::Stop {
        instance,
        attempt: 1,
    }
}

fn stopped() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("up"));
    let begun = Instant::now();
    pair.leader().perform(stop());
    assert_eq!(failed(pair.ended()).0, FailureKind::Cancelled);
    assert!(begun.elapsed() < tarn_local::GRACE, "it was asked first");
    nothing_left(&bench, false);
    late(&bench);
}

fn mate_lost() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("up"));
    pair.part();
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, FailureKind::NodeLost);
    assert!(message.contains("`n1`"), "{message}");
    pair.mate = None;
    nothing_left(&bench, false);
    late(&bench);
}

fn leader_lost() {
    let Some(bench) = bench(vec![], LONG, vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    pair.there(&bench.path("up"));
    // As a machine that loses its power: nothing more is heard of it.
    pair.cut.store(true, Ordering::SeqCst);
    pair.mate().local.mate_lost(NodeId(0));
    let work = TierDir::new(&bench.path("tier"), "ws", "n1").work();
    pair.until(|_| entries(&work).is_empty().then_some(()));
    late(&bench);
    // It is free for others meanwhile.
    pair.mate().begin(0, 2, &[1], vec![]);
    let ended = pair.until(|p| Some(p.mate().local.poll()?.1));
    assert!(matches!(ended, Event::Ended { .. }), "{ended:?}");
}

/// Does something before it divides a tree for the n-th time.
struct Hooked(
    Trees,
    AtomicUsize,
    Box<dyn Fn(usize) -> Done<()> + Send + Sync>,
);

type Done<T> = Result<T, MoverError>;

impl Hooked {
    fn mover(hook: impl Fn(usize) -> Done<()> + Send + Sync + 'static) -> Arc<dyn Mover> {
        Arc::new(Self(Trees::new(), AtomicUsize::new(0), Box::new(hook)))
    }
}

impl Mover for Hooked {
    fn capabilities(&self, folder: &Path) -> Done<TreeCapabilities> {
        self.0.capabilities(folder)
    }
    fn list(&self, root: &Path, control: &Control) -> Done<Manifest> {
        self.0.list(root, control)
    }
    fn digest(&self, root: &Path, control: &Control) -> Done<Manifest> {
        self.0.digest(root, control)
    }
    fn verify(&self, root: &Path, manifest: &Manifest, control: &Control) -> Done<()> {
        self.0.verify(root, manifest, control)
    }
    fn copy(&self, job: &CopyJob, control: &Control) -> Done<CopyReport> {
        self.0.copy(job, control)
    }
    fn link_view(&self, roots: &[(PathBuf, Manifest)], dest: &Path) -> Done<()> {
        self.0.link_view(roots, dest)
    }
    fn clone_view(
        &self,
        roots: &[(PathBuf, Manifest)],
        dest: &Path,
        control: &Control,
    ) -> Done<u64> {
        self.0.clone_view(roots, dest, control)
    }
    fn split(&self, root: &Path, parts: &[(&Manifest, PathBuf)]) -> Done<()> {
        self.2(self.1.fetch_add(1, Ordering::SeqCst))?;
        self.0.split(root, parts)
    }
    fn remove(&self, root: &Path) -> Done<()> {
        self.0.remove(root)
    }
    fn stored(&self, root: &Path) -> Done<u64> {
        self.0.stored(root)
    }
}

/// A step with two outputs, each of both nodes.
fn two_outputs() -> Option<Bench> {
    let run = r#"for n in n0 n1; do "$HELPER" exec $n -- sh -c '
        echo $TARN_NODE > $TARN_one/$TARN_NODE; echo $TARN_NODE > $TARN_two/$TARN_NODE'; done"#;
    let out = |at| used(at, Role::Out, Distribution::Scatter);
    bench(vec![data("one"), data("two")], run, vec![out(0), out(1)])
}

fn publishing() {
    let Some(bench) = two_outputs() else { return };
    // The leader hangs before it publishes its part of the second output.
    let (reached, goes_on) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (reach, go_on) = (Arc::clone(&reached), Arc::clone(&goes_on));
    let hanging = Hooked::mover(move |n| {
        reach.store(n == 1, Ordering::SeqCst);
        while n == 1 && !go_on.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let mut pair = Pair::with(&bench, [&hanging, &bench.mover]);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![], vec![]]);
    pair.until(|_| reached.load(Ordering::SeqCst).then_some(()));
    let parts = TierDir::new(&bench.path("tier"), "ws", "n1").parts();
    // The mate has published both.
    pair.until(|_| (entries(&parts).len() == 2).then_some(()));
    pair.part();
    pair.until(|_| entries(&parts).is_empty().then_some(()));
    goes_on.store(true, Ordering::SeqCst);
    assert_eq!(failed(pair.ended()).0, FailureKind::NodeLost);
    pair.mate = None;
    nothing_left(&bench, false);
    let manifests = entries(&bench.state().manifests("ws"));
    assert_eq!(manifests, Vec::<PathBuf>::new());
}

fn unpublished() {
    let Some(bench) = two_outputs() else { return };
    let broken = Hooked::mover(|n| match n {
        0 => Ok(()),
        _ => Err(MoverError::new(FailureKind::Io, "the disk is broken")),
    });
    let mut pair = Pair::with(&bench, [&bench.mover, &broken]);
    pair.leader().begin(0, 1, &[0, 1], vec![vec![], vec![]]);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, FailureKind::Io);
    assert!(
        message.contains("on node `n1`: the disk is broken"),
        "{message}"
    );
    nothing_left(&bench, false);
    let manifests = entries(&bench.state().manifests("ws"));
    assert_eq!(manifests, Vec::<PathBuf>::new());
}

fn missing() {
    let uses = vec![used(0, Role::In, Distribution::Scatter)];
    let Some(mut bench) = bench(vec![ranked("case")], "true", uses) else {
        return;
    };
    for name in ["p0/f", "p1/f", "common"] {
        bench.write(&format!("raw/{name}"), name);
    }
    bench.workflow.data[0].source = Some(bench.path("raw"));
    let mut pair = Pair::new(&bench);
    let views = pair.stage();
    let damaged = views[1][0].clone();
    let replica = TierDir::new(&bench.path("tier"), "ws", "n1").part(&damaged.key);
    assert_eq!(tree(&replica).len(), 1);
    std::fs::remove_dir_all(replica).unwrap();
    pair.leader().begin(0, 1, &[0, 1], vec![views]);
    let (kind, message, _) = failed(pair.ended());
    assert_eq!(kind, FailureKind::Corrupt, "{message}");
    let gone = Event::Evicted {
        part: damaged.part,
        at: Place::Node(spot(1)),
    };
    // By the leader, and before the attempt's end.
    assert_eq!(pair.told, [gone]);
}

fn unknown() {
    let Some(bench) = bench(vec![], "true", vec![]) else {
        return;
    };
    let mut pair = Pair::new(&bench);
    // The mate is one that was started anew in the middle.
    pair.leader().begin(0, 1, &[0, 1], vec![]);
    let (from, _, step, begin) = pair.letters.recv().unwrap();
    assert!(String::from_utf8_lossy(&begin).contains("Begin"));
    assert_eq!(failed(pair.ended()).0, FailureKind::NodeLost);
    // Garbage, and what was never begun here.
    for text in ["", "{}", "\n\n", r#"{"at":7,"say":"Gone","sizes":[9]}"#] {
        pair.mate().local.mate(from, step, text.as_bytes());
        pair.leader().local.mate(NodeId(1), step, text.as_bytes());
    }
    pair.mate().local.mate(from, step, &begin);
    pair.mate().local.mate(from, step, &begin);
    pair.leader().begin(0, 2, &[0, 1], vec![]);
    committed(pair.ended());
}

fn ending() {
    for leader in [true, false] {
        let Some(bench) = bench(vec![], LONG, vec![]) else {
            return;
        };
        let mut pair = Pair::new(&bench);
        pair.leader().begin(0, 1, &[0, 1], vec![]);
        pair.there(&bench.path("up"));
        let begun = Instant::now();
        match leader {
            true => pair.leader = None,
            false => pair.mate = None,
        }
        assert!(begun.elapsed() < Duration::from_secs(4));
        let node = if leader { "n0" } else { "n1" };
        let work = TierDir::new(&bench.path("tier"), "ws", node).work();
        assert_eq!(entries(&work), Vec::<PathBuf>::new());
        // What the leader said last is enough for the mate.
        if leader {
            let work = TierDir::new(&bench.path("tier"), "ws", "n1").work();
            pair.until(|_| entries(&work).is_empty().then_some(()));
        }
    }
}
