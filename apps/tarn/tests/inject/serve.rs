//! `tarn block serve`: how it begins and ends.

use crate::calls::{How, is_swept, sweep};
use crate::common::{Ran, tarn};
use crate::nbd::{Fixture, SIZE};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

/// Serves until it listens, and then gets a signal to end.
const SERVE: &str = r#"
rm -f uri
# As under nohup.
trap '' HUP
"$0" block serve "$@" > uri &
served=$!
until test -s uri || ! kill -0 $served 2> /dev/null; do sleep 0.02; done
cp /proc/$served/status status 2> /dev/null
kill -TERM $served 2> /dev/null
wait $served
"#;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 7 + at / 4096) as u8).collect()
}

/// A partition with content, which is the end of its file.
fn stored() -> Fixture {
    let fixture = Fixture::new(&[]).expect("nbdkit");
    fixture.partition("disk");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(fixture.file("disk"))
        .unwrap();
    let start = file.metadata().unwrap().len() - SIZE;
    file.write_all_at(&content(), start).unwrap();
    fixture
}

fn command(fixture: &Fixture, socket: Option<&str>) -> (PathBuf, Command) {
    let mut command = Command::new("bash");
    command
        .args(["-c", SERVE])
        .arg(tarn())
        .arg(fixture.name("disk"))
        .current_dir(fixture.path(""))
        .env("XDG_RUNTIME_DIR", fixture.path("run"))
        .env_remove("LD_LIBRARY_PATH");
    if let Some(socket) = socket {
        command.args(["--socket", socket]);
    }
    (fixture.path(""), command)
}

fn names(folder: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let names = entries.map(|e| e.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

pub(crate) fn block_serve() {
    is_swept("block serve");
    if Fixture::new(&[]).is_none() {
        return;
    }
    for socket in [None, Some("own.sock")] {
        let command = |fixture: &Fixture| command(fixture, socket);
        sweep(
            "block serve",
            "tarn,nbdkit",
            stored,
            command,
            |fixture, hit| {
                let again = Ran::of(command(fixture).1.output().unwrap());
                assert_eq!(again.code, Some(0), "{}; serve: {}", hit.what, again.err);
                let status = fs::read_to_string(fixture.path("status")).unwrap();
                let ignored = status.lines().find(|line| line.starts_with("SigIgn:"));
                let ignores = ignored
                    .is_some_and(|mask| mask.ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f']));
                assert!(ignores, "a terminal that closes ends it: {ignored:?}");
                let uri = fs::read_to_string(fixture.path("uri")).unwrap();
                assert!(uri.starts_with("nbd+unix://"), "{}: {uri}", hit.what);
                let file = fs::read(fixture.file("disk")).unwrap();
                assert!(file.ends_with(&content()), "{}", hit.what);
                // A folder that cannot be removed is named.
                let is_named = hit.ran.err.contains("cannot remove");
                let left = names(fixture.path("run"));
                let may = hit.how == How::Kill || is_named;
                assert!(left.is_empty() || may, "{}: {left:?}", hit.what);
                let mut there = names(fixture.path(""));
                there.retain(|name| !(may && name.starts_with("tarn-block-")));
                let expected = ["disk.partition", "run", "status", "uri"];
                assert_eq!(there, expected, "{}: {}", hit.what, hit.ran.err);
            },
        );
    }
}
