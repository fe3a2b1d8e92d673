//! A site's controller without Slurm and without nodes: the requests that two users may send to it. Needs root, to be two users.

use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_proto::site::{
    ControllerReply, ControllerRequest, JobSubmission, Owner, SlurmJobId, Stage, Staging, decode,
    encode,
};
use tarn_spec::{SbatchScript, parse_job};
use tarn_tests::programs;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(30);
/// Numbers that packages and people do not have; both users are in the group.
const ALICE: u32 = 27_001;
const BOB: u32 = 27_002;
const CAROL: u32 = 27_003;
const PROJECT: u32 = 27_100;

struct Controller {
    folder: TempDir,
    tarnd: Child,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.tarnd.kill();
        let _ = self.tarnd.wait();
    }
}

fn spawn(folder: &Path) -> Child {
    let log = fs::File::create(folder.join("log")).expect("a log");
    Command::new(folder.join("tarnd"))
        .args(["--controller", "--listen", "127.0.0.1:0", "--state"])
        .arg(folder.join("state"))
        .arg("--socket")
        .arg(folder.join("socket"))
        .arg("--config")
        .arg(folder.join("site.toml"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("tarnd starts")
}

impl Controller {
    /// `None`, with a message, where nobody can be two users.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let id = Command::new("id").arg("-u").output().expect("id");
        if id.stdout != b"0\n" {
            eprintln!("SKIPPED: one who is not root cannot be two users");
            return None;
        }
        // Users reach the program and the socket, whatever is above the build folder.
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        open(folder.path()).expect("a mode");
        for name in ["tarn", "tarnd"] {
            let program = programs::built(name).expect("a program");
            let copy = folder.path().join(name);
            // By another process: one that is forked here meanwhile would have it open for writing, and it could not be run.
            let copied = Command::new("cp").arg(program).arg(&copy).status();
            assert!(copied.expect("cp").success());
            open(&copy).expect("a mode");
        }
        fs::write(folder.path().join("site.toml"), "nodes = []\n").expect("site.toml");
        let tarnd = spawn(folder.path());
        let site = Self { folder, tarnd };
        site.wait();
        Some(site)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn wait(&self) {
        let until = Instant::now() + SOON;
        while UnixStream::connect(self.socket()).is_err() {
            let log = fs::read_to_string(self.folder.path().join("log"));
            assert!(Instant::now() < until, "it does not begin: {log:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn restart(&mut self) {
        self.tarnd.kill().expect("kill");
        self.tarnd.wait().expect("wait");
        self.tarnd = spawn(self.folder.path());
        self.wait();
    }

    /// A request as from Slurm's scripts.
    fn ask(&self, ask: &ControllerRequest) -> ControllerReply {
        let mut stream = UnixStream::connect(self.socket()).expect("the socket");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        let frame = encode(ask).expect("a frame");
        stream.write_all(&frame).expect("a question");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("a length");
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut body).expect("an answer");
        decode(&body).expect("a message")
    }

    /// A user's job is taken in.
    fn submit(&self, job: SlurmJobId, user: u32, lines: &str) -> ControllerReply {
        let text = format!("#!/bin/sh\n{lines}true\n");
        let name = "job.sh";
        let script = SbatchScript { name, text: &text };
        let parsed = parse_job(&script, Path::new("/"), false);
        let parsed = parsed.expect("a script").expect("with lines");
        let owners = [
            ("alice", Owner::User(ALICE)),
            ("@climate", Owner::Project(PROJECT)),
        ];
        let submitted = JobSubmission {
            has_wish: false,
            user,
            group: user,
            groups: groups(user),
            owners: owners.map(|(name, who)| (name.to_owned(), who)).into(),
            is_alone: parsed.is_alone,
            chain: None,
            excludes: Some(Vec::new()),
            workflow: parsed.parsed.workflow,
        };
        let stage = Stage::Setup(Box::new(submitted));
        self.ask(&ControllerRequest::Stage(Staging { job, stage }))
    }

    /// The output of a user's `tarn`, or its refusal.
    fn tarn(&self, user: u32, words: &[&str]) -> Result<String, String> {
        let groups: Vec<String> = groups(user).iter().map(u32::to_string).collect();
        let done = Command::new("setpriv")
            .args(["--reuid", &user.to_string(), "--regid", &user.to_string()])
            .args(["--groups", &groups.join(",")])
            .arg(self.folder.path().join("tarn"))
            .args(words)
            .current_dir(self.folder.path())
            .env("TARN_CONTROLLER", self.socket())
            .env_remove("TARN_STATE")
            .output()
            .expect("setpriv");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match done.status.success() {
            true => Ok(text(&done.stdout)),
            false => Err(text(&done.stderr)),
        }
    }

    fn names(&self, user: u32) -> Vec<String> {
        let list = self.tarn(user, &["--json", "data", "ls"]).expect("a list");
        let lines = list.lines().map(|line| {
            let value: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(value["schema"], 1);
            value["name"].as_str().expect("a name").to_owned()
        });
        lines.collect()
    }
}

fn groups(user: u32) -> Vec<u32> {
    match user {
        CAROL => vec![user],
        _ => vec![user, PROJECT],
    }
}

const MESH: &str = "#TARN name = \"foam\"\n#TARN [[step]]\n#TARN out = [\"mesh\"]\n";
const READ: &str = "#TARN name = \"mine\"\n#TARN data.grid.of = \"alice/foam/mesh\"\n#TARN [[step]]\n#TARN in = [\"grid\"]\n";
const FORCING: &str = "#TARN name = \"w\"\n#TARN data.forcing.project = \"climate\"\n#TARN [[step]]\n#TARN out = [\"forcing\"]\n";

#[test]
fn a_grant_is_given_kept_over_a_restart_and_taken() {
    let Some(mut site) = Controller::start() else {
        return;
    };
    assert!(matches!(
        site.submit(1, ALICE, MESH),
        ControllerReply::Updates(_)
    ));
    let mesh = format!("{ALICE}/foam/mesh");
    assert_eq!(site.names(ALICE), [mesh.as_str()]);
    assert!(site.names(BOB).is_empty());
    assert!(matches!(
        site.submit(2, BOB, READ),
        ControllerReply::Refused(_)
    ));
    let grant = ["data", "grant", "foam/mesh", &BOB.to_string()].map(str::to_owned);
    let grant: Vec<&str> = grant.iter().map(String::as_str).collect();
    site.tarn(ALICE, &grant).expect("granted");
    site.restart();
    assert_eq!(site.names(BOB), [mesh.as_str()]);
    assert!(matches!(
        site.submit(3, BOB, READ),
        ControllerReply::Updates(_)
    ));
    let shown = site
        .tarn(ALICE, &["data", "show", "foam/mesh"])
        .expect("it");
    assert!(shown.contains(&format!("read by {BOB}")), "{shown}");
    assert!(shown.contains("needed by job 1, 3"), "{shown}");
    let shown = site.tarn(BOB, &["data", "show", &mesh]).expect("it");
    assert!(!shown.contains("read by") && shown.contains("needed by job 3"));
    // A wish is kept, and taken back.
    site.tarn(ALICE, &["data", "keep", "foam/mesh", "400d"])
        .expect("kept");
    site.tarn(ALICE, &["data", "pin", "foam/mesh"])
        .expect("pinned");
    site.tarn(ALICE, &["data", "release", "foam/mesh"])
        .expect("released");
    site.tarn(ALICE, &["data", "revoke", "foam/mesh", &BOB.to_string()])
        .expect("revoked");
    assert!(site.names(BOB).is_empty());
    assert!(matches!(
        site.submit(4, BOB, READ),
        ControllerReply::Refused(_)
    ));
    let why = site.tarn(ALICE, &["data", "rm", "foam/mesh"]);
    let why = why.expect_err("job 1 makes it");
    assert!(why.contains("used by job 1:"), "{why}");
    let used = site.tarn(ALICE, &["usage", "--since", "2026-01-01"]);
    assert_eq!(used.expect("an answer"), "");
}

#[test]
fn attack_what_is_somebody_elses_is_neither_shown_nor_changed() {
    let Some(site) = Controller::start() else {
        return;
    };
    site.submit(1, ALICE, MESH);
    site.submit(2, ALICE, FORCING);
    let project = format!("@{PROJECT}/forcing");
    let mesh = format!("{ALICE}/foam/mesh");
    assert_eq!(site.names(BOB), [project.as_str()]);
    assert!(site.names(CAROL).is_empty());
    for name in [&mesh, &project] {
        for words in [
            &["show", name][..],
            &["rm", name],
            &["rm", name, "--number", "1"],
            &["grant", name, "27003"],
            &["revoke", name, "27001"],
            &["keep", name, "forever"],
            &["release", name],
        ] {
            let all: Vec<&str> = std::iter::once("data")
                .chain(words.iter().copied())
                .collect();
            assert!(site.tarn(CAROL, &all).is_err(), "{words:?}");
        }
    }
    // Names that are none are refused before any request, and show nothing that a terminal obeys.
    for name in [
        "../mesh",
        "foam/..",
        "27001/../../mesh",
        "@27100/../x",
        "foam/\u{1b}[2J",
        "foam/me\nsh",
        "@/x",
    ] {
        for words in [
            &["rm", name][..],
            &["grant", name, "27002"],
            &["show", name],
        ] {
            let all: Vec<&str> = std::iter::once("data")
                .chain(words.iter().copied())
                .collect();
            let why = site.tarn(ALICE, &all).expect_err(name);
            assert!(!why.contains('\u{1b}'), "{why:?}");
        }
    }
    // Nobody speaks for Slurm, or for somebody else's workflow.
    for words in [&["slurm", "end", "foam"][..], &["slurm", "why", "1"]] {
        assert!(site.tarn(CAROL, words).is_err(), "{words:?}");
    }
    let who = site.tarn(
        ALICE,
        &["data", "grant", "foam/mesh", "nobody-of-this-name"],
    );
    assert!(who.expect_err("nobody").contains("there is no user"));
}

#[test]
fn where_no_controller_is_that_is_said() {
    let tarn = programs::built("tarn").expect("a program");
    let folder = tempfile::tempdir().expect("a folder");
    for words in [
        &["data", "show", "foam/mesh"][..],
        &["data", "ls", "--site"],
        &["data", "rm", "foam/mesh"],
        &["data", "ls", "--orphans"],
        &["usage"],
    ] {
        let done = Command::new(&tarn)
            .args(words)
            .current_dir(folder.path())
            .env("TARN_CONTROLLER", folder.path().join("none"))
            .output()
            .expect("tarn");
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success(), "{words:?}");
        assert!(
            stderr.contains("is `tarnd --controller` running"),
            "{stderr}"
        );
    }
    // Without a `/` it is a run's dataset, and none is here.
    let done = Command::new(&tarn)
        .args(["data", "rm", "mesh", "--number", "1"])
        .current_dir(folder.path())
        .output()
        .expect("tarn");
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(stderr.contains("--object"), "{stderr}");
}
