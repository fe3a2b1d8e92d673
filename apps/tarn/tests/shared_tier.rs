//! Several runs on one tier: together they never take more than it has, and each leaves nothing behind.

mod common;
use common::{Ran, Site, send, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Room for the data of one run of `CHAIN` (two datasets of 4 MiB at a time) and half of another's.
const TIER: u64 = 10 * MIB;

/// Three datasets, each made from the one before it.
const CHAIN: &str = r#"
name = "chain"
[data.raw]
source = "raw"
[data.a]
size = "4 MiB"
[data.b]
size = "4 MiB"
[data.c]
size = "4 MiB"
dest = "c"
[[step]]
name = "first"
run = "cp $TARN_raw/f $TARN_a/f; sleep 0.2"
in = ["raw"]
out = ["a"]
[[step]]
name = "second"
run = "cp $TARN_a/f $TARN_b/f; sleep 0.2"
in = ["a"]
out = ["b"]
[[step]]
name = "third"
run = "cp $TARN_b/f $TARN_c/f; sleep 0.2"
in = ["b"]
out = ["c"]
"#;

fn chain(tier: &Path, fill: u8) -> Site {
    let site = on_tier(CHAIN, tier);
    std::fs::create_dir(site.path("raw")).expect("mkdir");
    std::fs::write(site.path("raw/f"), content(fill)).expect("write");
    site
}

/// 4 MiB less what folders and the ledger may take.
fn content(fill: u8) -> Vec<u8> {
    vec![fill; 4 * MIB as usize - 65_536]
}

fn on_tier(workflow: &str, tier: &Path) -> Site {
    let mut site = Site::new(workflow);
    site.options = vec!["--tier".into(), format!("fast={}:{TIER}B", tier.display())];
    site
}

fn kill(child: Child) {
    send(Signal::KILL, &child);
    Ran::end(child);
}

/// Bytes that the files below a folder take; each inode once.
fn taken(folder: &Path) -> u64 {
    fn walk(folder: &Path, seen: &mut BTreeMap<u64, u64>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(m) if m.is_dir() => walk(&entry.path(), seen),
                Ok(m) => drop(seen.insert(m.ino(), m.blocks() * 512)),
                // It has gone meanwhile.
                Err(_) => {}
            }
        }
    }
    let mut seen = BTreeMap::new();
    walk(folder, &mut seen);
    seen.values().sum()
}

/// The sum of these keys in the ledger at the tier's root.
fn accounted(tier: &Path, keys: &[&str]) -> u64 {
    let text = std::fs::read_to_string(tier.join("ledger")).unwrap_or_default();
    let page: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let claims = page["entries"].as_array().cloned().unwrap_or_default();
    let number = |c: &serde_json::Value, key: &str| c[key].as_u64().unwrap_or(0);
    let of = |c: &serde_json::Value| keys.iter().map(|k| number(c, k)).sum::<u64>();
    claims.iter().map(of).sum()
}

/// Everything at the tier's root.
fn left(tier: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(tier).expect("the tier");
    let mut names: Vec<String> = entries
        .map(|e| {
            e.expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn two_runs_at_once_never_take_more_than_the_tier_and_both_finish() {
    let tier = TempDir::new().expect("a tier");
    let sites = [chain(tier.path(), 1), chain(tier.path(), 2)];
    let mut children: Vec<Child> = sites.iter().map(|s| s.begin(&[])).collect();
    let (mut most, mut used, mut both) = (0, 0, false);
    until("two runs", || {
        most = most.max(taken(tier.path()));
        used = used.max(accounted(tier.path(), &["used", "reserved"]));
        both |= left(tier.path())
            .iter()
            .filter(|n| n.starts_with("chain-"))
            .count()
            == 2;
        children
            .iter_mut()
            .all(|c| c.try_wait().expect("a child").is_some())
    });
    for (child, fill) in children.into_iter().zip([1, 2]) {
        let site = &sites[usize::from(fill) - 1];
        Ran::end(child).exits(0);
        assert!(std::fs::read(site.path("c/f")).expect("the result") == content(fill));
    }
    assert!(both, "they did not run at the same time");
    assert!((7 * MIB..=TIER).contains(&most), "{most} bytes on the tier");
    assert!(
        (7 * MIB..=TIER).contains(&used),
        "{used} bytes in the ledger"
    );
    assert_eq!(left(tier.path()), ["ledger.lock"]);
}

/// One step that takes 8 MiB and hangs until there is a file `go`.
const HANGS: &str = r#"
name = "hangs"
[data.big]
size = "8 MiB"
dest = "big"
[data.next]
dest = "next"
[[step]]
name = "make"
run = "WRITE; touch $TARN_WORKFLOW_DIR/made; until [ -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.05; done; echo done > $TARN_big/f"
out = ["big"]
"#;

#[test]
fn a_run_that_is_killed_gives_its_reservation_back() {
    let tier = TempDir::new().expect("a tier");
    let hangs = on_tier(
        &HANGS
            .replace("[data.next]\ndest = \"next\"\n", "")
            .replace("WRITE", "true"),
        tier.path(),
    );
    let holder = hangs.begin(&[]);
    until("the step", || hangs.path("made").exists());
    assert!(accounted(tier.path(), &["used", "reserved"]) >= 8 * MIB);
    let other = chain(tier.path(), 3);
    let mut waiting = other.begin(&[]);
    until("the other", || {
        other.path(".tarn/runs/chain-1/events.log").exists()
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(
        waiting.try_wait().expect("a child").is_none(),
        "it did not wait"
    );
    assert!(!other.path("c").exists());
    kill(holder);
    Ran::end(waiting).exits(0);
    assert!(std::fs::read(other.path("c/f")).expect("the result") == content(3));
    hangs.write("go", "");
    hangs.tarn(&["resume"]).exits(0);
    assert_eq!(hangs.read("big/f"), "done\n");
    assert_eq!(left(tier.path()), ["ledger.lock"]);
}

/// A dataset of 8 MiB that stays until a step that hangs has read it.
const HOLDS: &str = r#"
name = "holds"
[data.big]
size = "8 MiB"
[data.next]
dest = "next"
[[step]]
name = "make"
run = "head -c 8000000 /dev/zero > $TARN_big/f"
out = ["big"]
[[step]]
name = "use"
run = "touch $TARN_WORKFLOW_DIR/made; until [ -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.05; done; wc -c < $TARN_big/f > $TARN_next/n"
in = ["big"]
out = ["next"]
"#;

#[test]
fn the_data_of_a_killed_run_blocks_nobody_for_ever() {
    let tier = TempDir::new().expect("a tier");
    let holds = on_tier(HOLDS, tier.path());
    let holder = holds.begin(&[]);
    until("the step", || holds.path("made").exists());
    kill(holder);
    let other = chain(tier.path(), 4);
    let begun = Instant::now();
    let refused = other.run();
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    assert!(matches!(refused.code, Some(1 | 5)), "{refused:?}");
    for text in ["holds-", "tarn resume", "tarn data rm"] {
        assert!(refused.err.contains(text), "no {text:?} in {}", refused.err);
    }
    // Its owner can remove the data as well as resume with it: it is made again.
    holds.tarn(&["data", "rm", "big"]).exits(0);
    other.tarn(&["resume"]).exits(0);
    holds.write("go", "");
    holds.tarn(&["resume"]).exits(0);
    assert_eq!(holds.read("next/n"), "8000000\n");
    assert!(std::fs::read(other.path("c/f")).expect("the result") == content(4));
    assert_eq!(left(tier.path()), ["ledger.lock"]);
}

#[test]
fn nothing_of_a_workspace_stays_when_its_data_has_gone() {
    let tier = TempDir::new().expect("a tier");
    let chain = |tier: &Path, fill| {
        let mut site = chain(tier, fill);
        site.options[1] = site.options[1].replace(&TIER.to_string(), &(2 * TIER).to_string());
        site
    };
    let kept = CHAIN
        .replace("[data.b]", "[data.b]\nkeep = \"forever\"")
        .replace("[data.a]", "[data.a]\nkeep = \"forever\"");
    for (n, commands) in [
        &[["data", "rm", "a"], ["data", "rm", "b"]][..],
        &[["data", "release", "b"], ["data", "rm", "a"]],
    ]
    .into_iter()
    .enumerate()
    {
        let site = chain(tier.path(), n as u8);
        site.write("workflow.toml", &kept);
        site.run().exits(0);
        assert_eq!(
            left(tier.path()).len(),
            3,
            "the ledger, its lock, the workspace"
        );
        let all = accounted(tier.path(), &["used", "reserved"]);
        assert!((7 * MIB..9 * MIB).contains(&all), "{all}");
        site.tarn(&commands[0]).exits(0);
        let rest = accounted(tier.path(), &["used", "reserved"]);
        assert!((3 * MIB..5 * MIB).contains(&rest), "{rest} of {all}");
        site.tarn(&commands[1]).exits(0);
        assert_eq!(left(tier.path()), ["ledger.lock"]);
    }
    let site = chain(tier.path(), 9);
    site.write("workflow.toml", &kept);
    site.run().exits(0);
    site.tarn(&["data", "drain", "a", "a"]).exits(0);
    site.tarn(&["data", "drain", "b", "b"]).exits(0);
    assert!(std::fs::read(site.path("b/f")).expect("drained") == content(9));
    assert_eq!(left(tier.path()), ["ledger.lock"]);
    // A failed run keeps what `resume` needs, and only that; its success takes it away.
    let site = chain(tier.path(), 7);
    site.write(
        "workflow.toml",
        &CHAIN.replace(
            "cp $TARN_b/f",
            "test -e $TARN_WORKFLOW_DIR/go && cp $TARN_b/f",
        ),
    );
    site.run().exits(1);
    assert!(!site.path("c").exists());
    let rest = accounted(tier.path(), &["used", "reserved"]);
    assert!((3 * MIB..5 * MIB).contains(&rest), "{rest}");
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(left(tier.path()), ["ledger.lock"]);
}
