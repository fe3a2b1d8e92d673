//! Pieces of a run move between nodes: while strangers bother every tarnd, and by libfabric.

use crate::{Fixture, TIER, wait_for_begin};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tarn_tests::slurm::Cluster;

/// Pieces of a megabyte, begun before the strangers come and moved while they are there.
const BOTHERED: &str = r#"
name = "bothered"

[data.raw]
source = "in"

[data.piece]

[data.all]
dest = "out"

[[step]]
name = "work"
foreach = "raw/*"
cores = 2
run = "echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; (yes \"$(cat $TARN_raw/$TARN_ITEM)\" || true) | head -c 1000000 > $TARN_piece/$TARN_ITEM"
in = ["raw"]
out = ["piece"]

[[step]]
name = "gather"
run = "cat $TARN_piece/f?? > $TARN_all/text"
in = ["piece"]
out = ["all"]
"#;

/// Runs it, and an action while its steps run; checks the result.
pub(crate) fn pieces_move<T>(
    cluster: &Cluster,
    options: &str,
    meanwhile: impl FnOnce() -> T,
) -> (String, T) {
    let fixture = Fixture::new(cluster, "bob", BOTHERED);
    let mut wanted: Vec<u8> = Vec::new();
    for n in 10..22 {
        let line = format!("piece {n}\n");
        fixture.write(&format!("in/f{n}"), &line);
        let piece = line.as_bytes().iter().cycle().take(1_000_000);
        wanted.extend(piece);
    }
    let running = fixture.start("-N2 -n16", &format!("tarn run {TIER} {options} wf.toml"));
    wait_for_begin(&fixture, 2);
    let result = meanwhile();
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert!(
        !text.contains("is lost") && !text.contains("failed"),
        "{text}"
    );
    let made = std::fs::read(fixture.path("out/text")).expect("the result");
    assert!(made == wanted, "{} bytes of {}", made.len(), wanted.len());
    let log = cluster.exec("bob", &["bash", "-c", "cat work/.tarn/runs/*/nodes.log"]);
    (log.unwrap_or_else(|e| panic!("{e:#}")), result)
}

/// Strangers at both ports of every tarnd: a run takes no notice.
pub(crate) fn strangers_come(cluster: &Cluster) -> Vec<Child> {
    let mut strangers = Vec::new();
    for node in [cluster.node(1), cluster.node(2)] {
        let listening = node.exec("root", &["ss", "-ltnpH"]);
        let listening = listening.unwrap_or_else(|e| panic!("{e:#}"));
        let of_tarnd = listening.lines().filter(|l| l.contains("\"tarnd\""));
        let ports: Vec<&str> = of_tarnd
            .filter_map(|l| l.split_whitespace().nth(3)?.rsplit_once(':'))
            .map(|(_, port)| port)
            .collect();
        assert_eq!(ports.len(), 2, "control and data: {listening}");
        for port in ports {
            let mut stranger = node.command("alice", &["stranger", port]);
            stranger.stdin(Stdio::piped()).stdout(Stdio::piped());
            strangers.push(stranger.spawn().expect("a stranger"));
        }
    }
    for stranger in &mut strangers {
        let output = stranger.stdout.as_mut().expect("its output");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "there\n");
    }
    strangers
}

/// Whether programs of the cluster find the library for libfabric.
pub(crate) fn shim(cluster: &Cluster) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut build = Command::new(root.join("scripts/shim.sh"));
    let built = build.arg(cluster.shared().join("bin")).status();
    match built.expect("shim.sh").code() {
        Some(3) => {
            eprintln!("SKIPPED: no libfabric-dev");
            false
        }
        code => {
            assert_eq!(code, Some(0));
            true
        }
    }
}

/// Nodes read each other's files by libfabric on request.
pub(crate) fn libfabric_moves_pieces(cluster: &Cluster) {
    if !shim(cluster) {
        return;
    }
    let (log, ()) = pieces_move(cluster, "--transport libfabric", || ());
    let windows = log.split("windows=").skip(1);
    let windows = windows.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(windows.sum::<u64>() > 0, "{log}");
}
