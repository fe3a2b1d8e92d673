//! `tarn ckpt` by the real binary, on arenas made here: tables, JSON, exit codes, and files that are damaged, lacking or not readable.

mod common;

use common::{Ran, Site};
use serde_json::Value;
use std::fs::{self, OpenOptions, Permissions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tarn_checkpoint_core::manifest::CHUNK;
use tarn_checkpoint_core::{
    Arena, ArenaHeader, Object, ObjectPiece, PersistenceLevel, PieceLocation, ProgramStart,
    RankManifest, Shape, VersionId,
};
use tarn_media::MappedFile;
use tarn_ports::{Medium, MediumWindow};
use tarn_types::block::{self, BlockKind};
use tarn_types::crc::crc;

const SIZE: u64 = 4 << 20;
/// The offset of staged pieces.
const STAGED: u64 = 64 << 10;
/// Of which all versions of these tests are.
const START: ProgramStart = ProgramStart {
    generation: 1,
    identity: 1,
};
/// Of an object of these tests: more than two chunks.
const LENGTH: usize = 2 * CHUNK as usize + 100;

/// A tier with a run's arenas, and a folder for memory.
struct Kept {
    site: Site,
}

fn id(number: u64) -> VersionId {
    VersionId {
        generation: 1,
        number,
    }
}

fn content(rank: u32, number: u64) -> Vec<u8> {
    let byte = |i: usize| (i as u64 * 7 + u64::from(rank) * 31 + number) as u8;
    (0..LENGTH).map(byte).collect()
}

fn object(key: &[u8], bytes: &[u8], place: PieceLocation) -> Object {
    Object {
        key: key.into(),
        unit: 4,
        shape: Shape::Own,
        pieces: vec![ObjectPiece {
            length: bytes.len() as u64,
            place,
            sums: bytes.chunks(CHUNK as usize).map(crc).collect(),
        }],
    }
}

impl Kept {
    fn new() -> Self {
        let site = Site::new("");
        fs::create_dir_all(site.path("memory")).unwrap();
        Self { site }
    }

    /// The arena of a rank of three in a run, with these versions whole in it; of `staged` there is an object `b` that waits in memory.
    fn arena(&self, run: &str, rank: u32, versions: Range<u64>, staged: Option<u64>) -> PathBuf {
        let folder = self.site.path("tier").join("phx").join(run).join("1");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{rank}.arena"));
        let mut mapped = MappedFile::create(&path, SIZE).unwrap();
        let mut windows = mapped.windows(std::slice::from_ref(&(0..SIZE))).unwrap();
        let window = &mut windows[0];
        let header = ArenaHeader {
            identity: identity(rank),
            run: run.as_bytes().into(),
            start: START,
            rank,
            ranks: 3,
        };
        let mut arena = Arena::format(window, header).unwrap();
        for number in versions {
            let bytes = content(rank, number);
            let at = arena.places(window, &[bytes.len() as u64]).unwrap()[0];
            window.write(at, &bytes).unwrap();
            window.persist().unwrap();
            let mut objects = vec![object(b"a", &bytes, PieceLocation::Arena(at))];
            let mut level = PersistenceLevel::Durable;
            if staged == Some(number) {
                objects.push(object(b"b", &bytes, PieceLocation::Staged(STAGED)));
                level = PersistenceLevel::Committed;
            }
            let new = Some((id(number), level, RankManifest::of(objects)));
            arena.publish(window, new, |_| true).unwrap();
        }
        path
    }

    /// Writes the staged data of a rank's version to memory.
    fn memory(&self, run: &str, rank: u32, number: u64, what: &str) -> PathBuf {
        let user = format!("tarn-phx-{}", rustix::process::getuid().as_raw());
        let folder = self.site.path("memory").join(user).join(run);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{rank}.{what}"));
        let mut bytes = block::seal(BlockKind::Staging, identity(rank), 0, &[], 4096);
        bytes.resize(STAGED as usize, 0);
        bytes.extend(content(rank, number));
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The message about staged data that is not there.
    fn is_not_in_memory(&self) -> String {
        format!(
            "is not in {}: if the program uses another folder in memory, give that as --memory",
            self.site.path("memory").display()
        )
    }

    fn tarn(&self, arguments: &[&str]) -> Ran {
        let tier = self.site.path("tier").to_string_lossy().into_owned();
        let memory = self.site.path("memory").to_string_lossy().into_owned();
        let places = ["--tier", &tier, "--memory", &memory];
        let mut command = self
            .site
            .command(&[&["ckpt"], arguments, &places[..]].concat());
        command.env_remove("TARN_PHX_TIER");
        command.env_remove("TARN_PHX_MEMORY");
        Ran::of(command.output().expect("tarn starts"))
    }

    fn json(&self, arguments: &[&str], code: i32) -> Vec<Value> {
        let ran = self.tarn(&[arguments, &["--json"]].concat()).exits(code);
        let lines = ran.out.lines();
        lines
            .map(|l| serde_json::from_str(l).expect("JSON"))
            .collect()
    }
}

fn identity(rank: u32) -> u128 {
    0xABCD_0000 + u128::from(rank)
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// The values of a line's keys, in the order of the keys.
fn of(line: &Value, keys: &[&str]) -> Vec<String> {
    let text = |key: &&str| line[*key].to_string().replace('"', "");
    keys.iter().map(text).collect()
}

#[test]
fn versions_are_listed_with_what_can_be_restored_of_them() {
    let kept = Kept::new();
    kept.arena("heat", 0, 1..4, Some(3));
    kept.arena("heat", 1, 1..3, None);
    kept.arena("heat", 2, 2..4, Some(3));
    kept.memory("heat", 0, 3, "staging");
    kept.arena("wave", 0, 1..1, None);
    let keys = [
        "generation",
        "number",
        "level",
        "ranks_here",
        "ranks",
        "bytes",
        "staged_bytes",
        "restorable",
        "why_not",
    ];
    let lines = kept.json(&["ls"], 0);
    let length = LENGTH as u64;
    let rows: Vec<String> = lines.iter().map(|l| of(l, &keys).join(" ")).collect();
    assert_eq!(
        rows,
        [
            format!("1 1 durable 2 3 {} 0 false rank 2 is not here", 2 * length),
            format!("1 2 durable 3 3 {} 0 true null", 3 * length),
            format!(
                "1 3 committed 2 3 {} {} false rank 1 is not here",
                4 * length,
                2 * length
            ),
        ]
    );
    assert!(lines.iter().all(|l| l["schema"] == 1 && l["run"] == "heat"));
    let table = kept
        .tarn(&["ls"])
        .exits(0)
        .prints("`wave` has not committed a checkpoint");
    let second = table.out.lines().nth(2).expect("three lines and a head");
    let words: Vec<&str> = second.split_whitespace().collect();
    assert_eq!(words[..6], ["heat", "1.2", "durable", "3", "of", "3"]);
    assert_eq!(words.last(), Some(&"yes"), "{second}");
    // With the missing rank there, it is the missing staged part that is in the way.
    kept.arena("wave", 1, 3..4, Some(3));
    fs::remove_dir_all(kept.site.path("tier/phx/heat/1")).unwrap();
    for rank in 0..3 {
        kept.arena("heat", rank, 3..4, Some(3));
    }
    kept.memory("heat", 2, 3, "buddy");
    let why = &kept.json(&["ls", "heat"], 0)[0]["why_not"];
    let gone = format!("the staged data of rank 1 {}", kept.is_not_in_memory());
    assert_eq!(why, &gone);
    // Of another arena, whatever it is called.
    let other = kept.memory("heat", 0, 3, "staging");
    fs::rename(&other, other.with_file_name("1.staging")).unwrap();
    assert_eq!(&kept.json(&["ls", "heat"], 0)[0]["why_not"], why);
    kept.memory("heat", 1, 3, "staging");
    kept.memory("heat", 0, 3, "staging");
    assert_eq!(kept.json(&["ls", "heat"], 0)[0]["restorable"], true);
}

#[test]
fn the_medium_says_what_a_loss_of_power_leaves() {
    let kept = Kept::new();
    kept.arena("heat", 0, 1..2, None);
    let here = kept.json(&["ls"], 0)[0]["power_fail"].clone();
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = shm.path().join("phx/heat/1");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(
        kept.site.path("tier/phx/heat/1/0.arena"),
        folder.join("0.arena"),
    )
    .unwrap();
    let tier = shm.path().to_string_lossy().into_owned();
    let arguments = ["ckpt", "ls", "--tier", &tier];
    kept.site
        .tarn(&arguments)
        .exits(0)
        .prints(" lost ")
        .prints("on a tier in memory");
    let there = kept.site.tarn(&[&arguments[..], &["--json"]].concat());
    assert_eq!(there.exits(0).summary()["power_fail"], "lost");
    assert!(["lost", "synced", "flushed", "fenced"].contains(&here.as_str().unwrap()));
}

#[test]
fn objects_are_shown_with_their_places() {
    let kept = Kept::new();
    kept.arena("heat", 0, 1..3, Some(2));
    let staging = kept.memory("heat", 0, 2, "staging");
    let lines = kept.json(&["show", "heat"], 0);
    let keys = ["number", "rank", "ranks", "key", "bytes", "unit"];
    let length = LENGTH.to_string();
    assert_eq!(of(&lines[0], &keys), ["2", "0", "3", "a", &length, "4"]);
    assert_eq!(of(&lines[1], &keys), ["2", "0", "3", "b", &length, "4"]);
    assert_eq!(lines[0]["shape"]["kind"], "own");
    let piece = &lines[1]["pieces"][0];
    assert_eq!(of(piece, &["place", "at"]), ["staging", "65536"]);
    let at = piece["here"][0]["path"].as_str();
    assert_eq!(at, staging.to_str());
    assert_eq!(kept.json(&["show", "heat", "1.1"], 0).len(), 1);
    kept.tarn(&["show", "heat"]).exits(0).prints("  staging\n");
    fs::remove_file(staging).unwrap();
    kept.tarn(&["show", "heat"])
        .exits(0)
        .prints("  staging (not here)\n")
        .prints(&kept.is_not_in_memory());
}

#[test]
fn shapes_and_odd_names_are_shown_and_obeyed_by_no_terminal() {
    let kept = Kept::new();
    let run = "sp\u{1b}[2Jace\nmean";
    let folder = kept.site.path("tier").join("phx").join(run).join("1");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("0.arena");
    let mut mapped = MappedFile::create(&path, SIZE).unwrap();
    let mut windows = mapped.windows(std::slice::from_ref(&(0..SIZE))).unwrap();
    let header = ArenaHeader {
        identity: 9,
        run: run.as_bytes().into(),
        start: START,
        rank: 0,
        ranks: 1,
    };
    let mut arena = Arena::format(&mut windows[0], header).unwrap();
    let shaped = |key: &[u8], shape| Object {
        shape,
        ..object(key, &[], PieceLocation::Staged(STAGED))
    };
    let objects = vec![
        shaped(b"all", Shape::Replicated),
        shaped(b"b\r\n\x1b[31m", Shape::Own),
        shaped(b"box", Shape::Block(vec![[100, 49, 51, 1], [7, 0, 7, 0]])),
        shaped(b"rows", Shape::Irregular(24)),
    ];
    let new = Some((id(1), PersistenceLevel::Durable, RankManifest::of(objects)));
    arena.publish(&mut windows[0], new, |_| true).unwrap();
    for arguments in [
        &["ls"][..],
        &["show", run],
        &["verify", run],
        &["ls", "none"],
    ] {
        let ran = kept.tarn(arguments);
        let all = ran.out + &ran.err;
        assert!(!all.contains(['\u{1b}', '\r']), "{all:?}");
        assert!(!all.contains("ace\nmean"), "{all:?}");
    }
    let shown = kept.tarn(&["show", run]).exits(0);
    let shown = shown.prints("b\\r\\n\\u{1b}[31m").prints("rows of 24 B");
    shown.prints("block 49+51/100~1 0+7/7");
    let lines = kept.json(&["show", run], 0);
    assert_eq!(lines[1]["key"], "b\r\n\u{1b}[31m");
    assert_eq!(lines[2]["shape"]["dimensions"][0]["ghost"], 1);
    assert_eq!(lines[3]["shape"]["row"], 24);
}

#[test]
fn a_flipped_bit_is_found_where_it_is() {
    let kept = Kept::new();
    let path = kept.arena("heat", 0, 1..3, None);
    kept.arena("heat", 1, 1..3, None);
    kept.arena("heat", 2, 1..3, None);
    let whole = kept.tarn(&["verify", "heat"]).exits(0);
    assert_eq!(whole.out.matches("all of it is whole").count(), 2);
    let show = kept.json(&["show", "heat", "1.2"], 0);
    let at = show[0]["pieces"][0]["at"].as_u64().unwrap();
    // The second chunk, and the third.
    flip(&path, at + CHUNK + 5);
    flip(&path, at + 2 * CHUNK);
    let found = kept.json(&["verify", "heat"], 1);
    let keys = ["kind", "number", "rank", "key", "from", "to", "in", "at"];
    let place = (at + CHUNK).to_string();
    let end = LENGTH.to_string();
    assert_eq!(
        of(&found[0], &keys),
        ["damage", "2", "0", "a", "262144", &end, "arena", &place]
    );
    assert_eq!(found[0]["stands_in"], Value::Null);
    let keys = [
        "kind",
        "number",
        "chunks",
        "damaged_chunks",
        "lost_chunks",
        "restorable",
    ];
    assert_eq!(
        of(&found[1], &keys),
        ["version", "1", "9", "0", "0", "true"]
    );
    assert_eq!(
        of(&found[2], &keys),
        ["version", "2", "9", "2", "2", "false"]
    );
    assert_eq!(found.len(), 3);
    kept.tarn(&["verify", "heat"])
        .exits(1)
        .prints("object `a`, bytes 262144 to")
        .prints("no copy is here");
    kept.tarn(&["verify", "heat", "1.1"]).exits(0);
}

#[test]
fn a_buddy_stands_in_for_what_is_damaged_or_gone_in_memory() {
    let kept = Kept::new();
    kept.arena("heat", 0, 1..2, Some(1));
    kept.arena("heat", 1, 1..2, None);
    kept.arena("heat", 2, 1..2, None);
    let verify = |code| kept.json(&["verify", "heat"], code);
    let summary = ["damaged_chunks", "lost_chunks", "restorable"];
    // Nothing has it.
    let memory = kept.site.path("memory");
    let found = verify(1);
    assert_eq!(
        of(&found[0], &["key", "in", "stands_in"]),
        ["b", "null", "null"]
    );
    assert_eq!(of(&found[1], &summary), ["3", "3", "false"]);
    kept.tarn(&["verify", "heat"])
        .exits(1)
        .prints(&format!("is not in {}; no copy is here", memory.display()))
        .prints(&kept.is_not_in_memory());
    // The buddy has it.
    let buddy = kept.memory("heat", 0, 1, "buddy");
    let found = verify(1);
    assert_eq!(of(&found[0], &["in", "stands_in"]), ["null", "buddy"]);
    assert_eq!(of(&found[1], &summary), ["3", "0", "true"]);
    // Both have it.
    let staging = kept.memory("heat", 0, 1, "staging");
    assert_eq!(of(&verify(0)[0], &summary), ["0", "0", "true"]);
    // Each is damaged elsewhere.
    flip(&staging, STAGED);
    flip(&buddy, STAGED + CHUNK);
    let found = verify(1);
    let keys = ["from", "to", "in", "stands_in"];
    assert_eq!(of(&found[0], &keys), ["0", "262144", "staging", "buddy"]);
    assert_eq!(
        of(&found[1], &keys),
        ["262144", "524288", "buddy", "staging"]
    );
    assert_eq!(of(&found[2], &summary), ["2", "0", "true"]);
    kept.tarn(&["verify", "heat"])
        .exits(1)
        .prints("the buddy has it undamaged")
        .prints("copies stand in for all");
    // The same chunk of both.
    flip(&buddy, STAGED + 1);
    let found = verify(1);
    assert_eq!(of(found.last().unwrap(), &summary), ["2", "1", "false"]);
}

#[test]
fn what_is_committed_meanwhile_is_no_damage() {
    let kept = Kept::new();
    let path = kept.arena("heat", 0, 1..3, None);
    let ended = AtomicBool::new(false);
    let commits = |mut mapped: MappedFile| {
        let mut windows = mapped.windows(std::slice::from_ref(&(0..SIZE))).unwrap();
        let window = &mut windows[0];
        let mut arena = Arena::resume(window).unwrap();
        let mut number = 2;
        while !ended.load(Relaxed) && number < 100_000 {
            number += 1;
            let bytes = content(0, number);
            let at = arena.places(window, &[bytes.len() as u64]).unwrap()[0];
            window.write(at, &bytes).unwrap();
            window.persist().unwrap();
            let objects = vec![object(b"a", &bytes, PieceLocation::Arena(at))];
            let new = Some((
                id(number),
                PersistenceLevel::Durable,
                RankManifest::of(objects),
            ));
            arena
                .publish(window, new, |v| v.id.number + 2 > number)
                .unwrap();
        }
        number
    };
    let mapped = MappedFile::open(&path).unwrap();
    let number = std::thread::scope(|scope| {
        let writer = scope.spawn(|| commits(mapped));
        let found: Vec<Ran> = (0..5).map(|_| kept.tarn(&["verify", "heat"])).collect();
        ended.store(true, Relaxed);
        for ran in found {
            ran.exits(0);
        }
        writer.join().unwrap()
    });
    let last = format!("version 1.{number}: 1 of 3 ranks");
    kept.tarn(&["verify", "heat"]).exits(0).prints(&last);
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_read() {
    let kept = Kept::new();
    kept.arena("heat", 0, 1..2, None);
    let folder = kept.site.path("tier/phx/heat/1");
    fs::write(folder.join("1.arena"), vec![7; 70_000]).unwrap();
    fs::write(folder.join("2.arena"), "").unwrap();
    fs::write(folder.join("notes.txt"), "x").unwrap();
    fs::write(kept.site.path("tier/phx/stray"), "x").unwrap();
    fs::create_dir_all(kept.site.path("tier/phx/heat/old")).unwrap();
    fs::write(kept.site.path("tier/phx/heat/2"), "x").unwrap();
    // To open it would wait for a writer.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("3.arena"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("0.arena", folder.join("4.arena")).unwrap();
    let listed = kept.tarn(&["ls", "--json"]).exits(0);
    assert_eq!(listed.out.lines().count(), 1);
    let listed = listed.prints("1.arena: this is no arena").prints("2.arena");
    let listed = listed.prints("3.arena: this is no file");
    listed
        .prints("4.arena: this is no file")
        .prints("phx/heat/2: Not a directory");
    let found = kept.json(&["verify", "heat"], 1);
    let kinds: Vec<&Value> = found.iter().map(|l| &l["kind"]).collect();
    assert_eq!(kinds.iter().filter(|k| **k == "unreadable").count(), 5);
    assert_eq!(kinds.last().unwrap(), &"version");
    kept.tarn(&["show", "heat"]).exits(0).prints("warning: ");
}

/// Root reads what others may not, and only root can make files of others: each sees a half of this.
#[test]
fn what_is_somebody_elses_is_named_or_not_believed() {
    let kept = Kept::new();
    kept.arena("heat", 0, 1..2, None);
    kept.arena("mine", 0, 1..2, Some(1));
    let staging = kept.memory("mine", 0, 1, "staging");
    kept.tarn(&["show", "mine"]).exits(0).prints("  staging\n");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&staging, Some(65_534), None).unwrap();
        kept.tarn(&["show", "mine"]).exits(0).prints("(not here)");
        return;
    }
    let folder = kept.site.path("tier/phx/heat");
    fs::set_permissions(&folder, Permissions::from_mode(0o0)).unwrap();
    let listed = kept.tarn(&["ls"]).exits(0);
    let verified = kept.tarn(&["verify", "heat"]).exits(1);
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    assert!(listed.prints("phx/heat: ").out.contains("mine"));
    verified.prints("unreadable: ");
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let kept = Kept::new();
    kept.tarn(&["ls"]).exits(0).prints("no checkpoints are in");
    kept.tarn(&["ls", "heat"])
        .exits(7)
        .prints("no program has any");
    kept.arena("heat", 0, 1..3, None);
    kept.arena("wave", 0, 1..1, None);
    for command in ["ls", "show", "verify"] {
        kept.tarn(&[command, "head"])
            .exits(7)
            .prints("there are those of heat, wave");
    }
    for command in ["show", "verify"] {
        kept.tarn(&[command, "heat", "1.9"])
            .exits(7)
            .prints("no version 1.9 here: there are 1.1, 1.2");
        kept.tarn(&[command, "heat", "nine"]).exits(2);
    }
    kept.tarn(&["show", "wave"])
        .exits(7)
        .prints("none is stored here");
    for command in ["ls", "verify"] {
        kept.tarn(&[command, "wave"])
            .exits(0)
            .prints("`wave` has not committed a checkpoint on this node yet");
    }
    let none = kept.site.tarn(&["ckpt", "ls", "--tier", "nowhere"]);
    none.exits(7).prints("cannot read nowhere");
    let mut command = kept.site.command(&["ckpt", "ls"]);
    command.env_remove("TARN_PHX_TIER");
    Ran::of(command.output().unwrap()).exits(2).prints("--tier");
    command.env("TARN_PHX_TIER", kept.site.path("tier"));
    Ran::of(command.output().unwrap()).exits(0).prints("heat");
}

#[test]
fn models_print_the_published_values_and_their_assumptions() {
    let site = Site::new("");
    let value = site.tarn(&["ckpt", "model", "--json"]).exits(0).summary();
    let number = |value: &Value| value.as_f64().expect("a number");
    let fitted = &value["loss"]["fitted"]["loss"];
    assert!((number(&fitted[0]) - 0.989_602_70).abs() < 1.5e-8);
    assert_eq!(format!("{:.8}", number(&fitted[1])), "0.00000003");
    let energy = &value["energy"];
    assert_eq!(energy["power_w"], energy["calibrated_power_w"]);
    let cases = energy["cases"].as_array().unwrap();
    // Two networks, three ratios, one or two switches; and the given case.
    assert_eq!(cases.len(), 13);
    assert!((number(&cases[0]["break_even_bytes"]) - 750e6).abs() < 1.0);
    assert!(number(&cases[1]["break_even_bytes"]) < 750e6);
    for part in ["loss", "interval", "energy"] {
        assert!(!value[part]["assumptions"].as_array().unwrap().is_empty());
    }
    let text = site.tarn(&["ckpt", "model"]).exits(0);
    let text = text.prints("0.98960271").prints("does not state its other");
    let text = text.prints("as other triples do").prints("Omni-Path");
    text.prints("750 MB, met by 32.0 W")
        .prints("take replicas = 1,");
}

#[test]
fn the_page_shows_what_is_printed() {
    let page = [
        include_str!("../../../docs/guide/checkpoint-models.md"),
        include_str!("../../../docs/internals/checkpoint-models.md"),
    ]
    .concat();
    let site = Site::new("");
    let table = site.tarn(&["ckpt", "model"]).exits(0).out;
    let command = page.split("```sh\n").nth(1).expect("a command");
    let command = command.split("```").next().unwrap().replace("\\\n", "");
    let command = command.replace('"', "").replace(" GB", "GB");
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let advice = site.tarn(&words).exits(0).out;
    let advice = advice.split("ADVICE").nth(1).expect("advice");
    let rows = table.lines().filter(|l| l.contains(":1  "));
    let rows = rows.filter(|l| !l.starts_with("as given"));
    let mut compared = 0;
    let advice = advice.lines().filter(|line| !line.starts_with("  - "));
    for line in rows.chain(advice) {
        assert!(page.contains(line), "{line}");
        compared += 1;
    }
    // Two tables, of 4 numbers of replicas and 19 ways, and the lines above and below them.
    assert_eq!(compared, 12 + 1 + (1 + 4) + (1 + 19) + 1);
}

#[test]
fn the_published_parameters_can_be_given() {
    let site = Site::new("");
    let mut given = vec!["ckpt", "model", "--json", "--exposure", "10s"];
    given.extend([
        "--interval",
        "60s",
        "--checkpoints",
        "2880",
        "--power",
        "300",
    ]);
    let value = site.tarn(&given).exits(0).summary();
    let loss = &value["loss"];
    for (row, fitted) in [0, 1].map(|n| (&loss["by_copies"][n], &loss["fitted"]["loss"][n])) {
        assert_eq!(&row["loss"], fitted);
    }
    assert_eq!(value["advice"]["replicas"], 1);
    assert_eq!(value["advice"]["interval_s"], 60.0);
    assert_eq!(value["energy"]["power_w"], 300.0);
    // Which way costs least, and each with its price.
    let advice = &value["advice"];
    assert_eq!(advice["copies"], 0);
    assert_eq!(advice["parity"], 16);
    assert_eq!(advice["by_replicas"].as_array().unwrap().len(), 4);
    let ways = advice["by_way"].as_array().unwrap();
    assert_eq!(ways.len(), 19);
    assert_eq!(ways[0]["back_s"], Value::Null);
    assert_eq!(ways[18]["parity"], 16);
    assert_eq!(ways[18]["loss"], advice["kept_loss"]);
    // Three versions of 1.5 GB, and two of a fifteenth of it for the set.
    assert_eq!(advice["tier_bytes"], 4_700_000_000u64);
    // Every third, of which a copy takes ten seconds over the link.
    given.extend(["--link", "0.15 GB/s", "--replicate-every", "3"]);
    let every = site.tarn(&given).exits(0).summary();
    assert_eq!(every["advice"]["by_way"][1]["window_s"], 190.0);
    given.extend(["--bound", "0"]);
    assert_eq!(
        site.tarn(&given).exits(0).summary()["advice"]["within_bound"],
        false
    );
    // No more copies than there are nodes.
    let levels = |nodes: &str| {
        let ran = site.tarn(&["ckpt", "model", "--json", "--nodes", nodes]);
        let loss = ran.exits(0).summary()["loss"].clone();
        let rows = |of: &str| loss[of].as_array().unwrap().len();
        (rows("levels"), rows("by_copies"))
    };
    assert_eq!(
        ["1", "2", "4", "5"].map(levels),
        [(2, 1), (4, 2), (6, 4), (6, 4)]
    );
    let alone = site.tarn(&["ckpt", "model", "--json", "--nodes", "1"]);
    let alone = alone.exits(0).summary();
    assert_eq!(alone["advice"]["by_way"].as_array().unwrap().len(), 1);
    assert_eq!(alone["advice"]["by_replicas"].as_array().unwrap().len(), 1);
    for wrong in [
        ["--nodes", "0"],
        ["--replicate-every", "0"],
        ["--mtbf", "0s"],
        ["--bytes", "0 B"],
        ["--link", "0 B/s"],
        ["--bound", "2"],
        ["--power", "nan"],
        ["--interval", "60"],
    ] {
        site.tarn(&[&["ckpt", "model"], &wrong[..]].concat())
            .exits(2);
    }
    // The smallest and the largest are numbers too.
    for extreme in [
        ["--bytes", "1 B"],
        ["--bytes", "16383 PiB"],
        ["--mtbf", "1ns"],
        ["--persistent-rate", "1 B/s"],
        ["--memory-rate", "1 B/s"],
        ["--link", "1 B/s"],
        ["--for-good", "0"],
        ["--staging", "0 B"],
    ] {
        let ran = site.tarn(&[&["ckpt", "model"], &extreme[..]].concat());
        let ran = ran.exits(0);
        assert!(!ran.out.contains("NaN"), "{extreme:?}: {}", ran.out);
    }
}
