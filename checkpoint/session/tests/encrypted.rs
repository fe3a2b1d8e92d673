//! Programs whose versions are encrypted with the user's key: each is a process of its own, as the key is found by the environment.

use std::path::Path;
use std::process::{Command, Output};
use tarn_checkpoint::{
    CheckpointErrorCode, CheckpointSession, Options, PersistenceLevel, Properties, VersionReader,
    VersionSelector,
};
use tarn_keyring::{fresh, write};
use tarn_seal::ring::KeyRing;

const CELLS: usize = 100_000;
/// The content of a cell, so that it is found wherever it is stored.
const NEEDLE: u64 = 0x7061_7373_776f_7264;
const ROLE: &str = "TARN_TEST_ROLE";

fn begin(encrypt: bool) -> Result<CheckpointSession, tarn_checkpoint::CheckpointError> {
    let mut session = CheckpointSession::begin(Options {
        encrypt,
        ..Options::default()
    })?;
    session.create("cells", CELLS * 8, 8, Properties::default())?;
    session.create("none", 0, 4, Properties::default())?;
    Ok(session)
}

fn read() -> Result<bool, tarn_checkpoint::CheckpointError> {
    let reader = VersionReader::open(VersionSelector::default())?;
    assert_eq!(reader.values::<u32>(0, "none")?, [0_u32; 0]);
    let cells = reader.values::<u64>(0, "cells")?;
    // It is opened once.
    assert_eq!(cells.as_ptr(), reader.values::<u64>(0, "cells")?.as_ptr());
    Ok(cells == [NEEDLE; CELLS])
}

/// A program that does its task, or reports why it cannot.
#[test]
#[ignore = "run by the others, with keys of its own"]
fn program() {
    let role = std::env::var(ROLE).unwrap();
    let outcome = match &*role {
        "write" | "write in clear" => begin(role == "write").and_then(|mut session| {
            session.values::<u64>("cells")?.fill(NEEDLE);
            let version = session.commit()?.id;
            session.wait(version, PersistenceLevel::Durable, None)?;
            session.end()
        }),
        // By the environment, or not at all.
        "restart" => begin(false).and_then(|mut session| {
            let version = session.restart(None)?;
            assert!(version.is_some());
            assert_eq!(session.values::<u64>("cells")?, [NEEDLE; CELLS]);
            session.end()
        }),
        "read" => read().map(|same| assert!(same)),
        other => panic!("{other}"),
    };
    match outcome {
        Ok(()) => println!("it is done"),
        Err(fault) => println!("it is not: {:?} {}", fault.code, fault.text),
    }
}

fn run(folder: &Path, role: &str, encrypt: bool) -> String {
    run_with(folder, role, encrypt, false)
}

fn run_with(folder: &Path, role: &str, encrypt: bool, clear: bool) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "program", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env("TARN_PHX_TIER", folder.join("tier"))
        .env("TARN_PHX_MEMORY", folder.join("memory"))
        .env("TARN_PHX_RUN", "run")
        .env_remove("TARN_PHX_ENCRYPT")
        .env_remove("TARN_PHX_CLEAR");
    if encrypt {
        command.env("TARN_PHX_ENCRYPT", "1");
    }
    if clear {
        command.env("TARN_PHX_CLEAR", "1");
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let output = String::from_utf8_lossy(&stdout).into_owned();
    assert!(
        status.success(),
        "{output}\n{}",
        String::from_utf8_lossy(&stderr)
    );
    output
}

#[track_caller]
fn done(folder: &Path, role: &str, encrypt: bool) {
    let output = run(folder, role, encrypt);
    assert!(output.contains("it is done"), "{output}");
}

#[track_caller]
fn refused(folder: &Path, role: &str, encrypt: bool, code: CheckpointErrorCode, why: &str) {
    let output = run(folder, role, encrypt);
    let is_refused = output.contains(&format!("it is not: {code:?}")) && output.contains(why);
    assert!(is_refused, "{output}");
}

fn contains_needle(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().flatten().any(|entry| {
        match entry.file_type().unwrap().is_dir() {
            true => contains_needle(&entry.path()),
            false => {
                let bytes = std::fs::read(entry.path()).unwrap();
                let mut words = bytes.chunks(8);
                words.any(|word| *word == NEEDLE.to_ne_bytes())
            }
        }
    })
}

#[test]
fn a_program_is_restarted_and_read_with_the_key_and_by_nobody_else() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    refused(
        folder,
        "write",
        false,
        CheckpointErrorCode::Invalid,
        "tarn key new",
    );
    let file = folder.join("config/tarn/key");
    let mut keys = KeyRing::new(fresh().unwrap());
    write(&file, &keys, false).unwrap();
    done(folder, "write", false);
    assert!(!contains_needle(folder));
    done(folder, "read", false);
    done(folder, "restart", true);
    refused(
        folder,
        "restart",
        false,
        CheckpointErrorCode::Invalid,
        "not asked for encryption",
    );
    // An older key of the user's is one still; another one is not.
    keys.rotate(fresh().unwrap()).unwrap();
    write(&file, &keys, true).unwrap();
    done(folder, "restart", true);
    done(folder, "read", false);
    keys.drop_old();
    write(&file, &keys, true).unwrap();
    for (role, encrypt) in [("restart", true), ("read", false)] {
        refused(
            folder,
            role,
            encrypt,
            CheckpointErrorCode::Invalid,
            "another key",
        );
    }
    std::fs::remove_file(&file).unwrap();
    refused(
        folder,
        "read",
        false,
        CheckpointErrorCode::Invalid,
        "tarn key new",
    );
}

#[test]
fn attack_what_is_in_clear_is_no_version_of_a_program_that_encrypts() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    let keys = KeyRing::new(fresh().unwrap());
    write(&folder.join("config/tarn/key"), &keys, false).unwrap();
    done(folder, "write in clear", false);
    for role in ["restart", "read"] {
        refused(
            folder,
            role,
            true,
            CheckpointErrorCode::Invalid,
            "TARN_PHX_CLEAR=1",
        );
        let output = run_with(folder, role, true, true);
        assert!(output.contains("it is done"), "{output}");
    }
    done(folder, "read", false);
}
