//! `tarn data` with objects of the node's store, by the real binary; and workflows whose edges are objects.

mod common;

use common::Site;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tarn_checkpoint_core::object::{TRAILER, Trailer};

fn json(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect()
}

#[test]
fn what_is_encrypted_is_had_with_its_key_alone() {
    let site = Site::new("");
    fs::create_dir(site.path("store")).unwrap();
    site.write("secret.dat", &"kryptonite ".repeat(60_000));
    let tarn = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = site.command(&words);
        command.env("TARN_OBJECTS", site.path("store"));
        common::Ran::of(command.output().unwrap())
    };
    let put = "data put secret.dat s --object --encrypt";
    let refused = tarn(put).err;
    assert!(refused.contains("tarn key new"), "{refused}");
    tarn("key new").exits(0);
    tarn(put).exits(0);
    let file = fs::read(site.path("store/s/1.obj")).unwrap();
    assert!(!file.windows(10).any(|w| w == b"kryptonite"));
    tarn("data get s copy.dat --object").exits(0);
    assert_eq!(site.read("copy.dat"), site.read("secret.dat"));
    let refused = tarn("data get s --object").err;
    assert!(refused.contains("name one to copy it to"), "{refused}");
    let listed = json(&tarn("data objects --json").exits(0).out);
    assert_eq!(listed[0]["encrypted"], true);
    // Its key goes with the user's: another one opens nothing, and a flipped bit is found.
    tarn("key rotate").exits(0);
    tarn("data get s again.dat --object").exits(0);
    fs::rename(site.path("config/tarn/key"), site.path("key")).unwrap();
    tarn("key new").exits(0);
    let refused = tarn("data get s other.dat --object").err;
    assert!(refused.contains("another key"), "{refused}");
    fs::rename(site.path("key"), site.path("config/tarn/key")).unwrap();
    let path = site.path("store/s/1.obj");
    let mut damaged = file.clone();
    damaged[100_000] ^= 1;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, damaged).unwrap();
    let refused = tarn("data get s damaged.dat --object").err;
    assert!(refused.contains("was changed"), "{refused}");
    // A value that is neither on nor off leaves nothing in clear.
    let mut command = site.command(&["data", "put", "secret.dat", "t", "--object"]);
    command.env("TARN_OBJECTS", site.path("store"));
    command.env("TARN_OBJECTS_ENCRYPT", "yes");
    let refused = common::Ran::of(command.output().unwrap()).err;
    assert!(refused.contains("set it to 1"), "{refused}");
    assert!(!site.path("store/t").exists());
}

/// Anybody can make checksums of trailers; a key opens only for the data with which it was made.
#[test]
fn attack_an_encrypted_object_is_what_its_trailer_said() {
    let site = Site::new("");
    fs::create_dir(site.path("store")).unwrap();
    site.write("secret.dat", &"kryptonite ".repeat(60_000));
    let tarn = |words: &[&str]| {
        let mut command = site.command(words);
        command.env("TARN_OBJECTS", site.path("store"));
        common::Ran::of(command.output().unwrap())
    };
    tarn(&["key", "new"]).exits(0);
    let put = ["data", "put", "secret.dat", "s", "--object", "--encrypt"];
    tarn(&[&put[..], &["--about", "coarse"]].concat()).exits(0);
    let path = site.path("store/s/1.obj");
    let file = fs::read(&path).unwrap();
    let at = file.len() - TRAILER as usize;
    let stored = Trailer::decode(&file[at..], file.len() as u64).unwrap();
    let attacks: [&dyn Fn(&mut Trailer); 3] =
        [&|t| t.about = "finer".into(), &|t| t.number = 2, &|t| {
            t.identity ^= 1
        }];
    for (n, attack) in attacks.iter().enumerate() {
        let mut trailer = stored.clone();
        attack(&mut trailer);
        let forged = site.path(&format!("store/s/{}.obj", trailer.number));
        let _ = fs::remove_file(&forged);
        fs::write(&forged, [&file[..at], &trailer.encode()].concat()).unwrap();
        let number = trailer.number.to_string();
        let get = ["data", "get", "s", "forged.dat", "--object", "--number"];
        let refused = tarn(&[&get[..], &[&number]].concat()).exits(1).err;
        assert!(refused.contains("was changed"), "{n}: {refused}");
        assert!(!site.path("forged.dat").exists());
    }
    let _ = fs::remove_file(&path);
    fs::write(&path, &file).unwrap();
    let get = ["data", "get", "s", "whole.dat", "--object", "--number", "1"];
    tarn(&get).exits(0);
    assert_eq!(site.read("whole.dat"), site.read("secret.dat"));
}

#[test]
fn objects_are_put_listed_verified_and_removed() {
    let site = Site::new("");
    fs::create_dir(site.path("store")).unwrap();
    site.write("mesh.dat", "points");
    let tarn = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = site.command(&words);
        common::Ran::of(
            command
                .env("TARN_OBJECTS", site.path("store"))
                .output()
                .unwrap(),
        )
    };
    let put = tarn("data put mesh.dat mesh/a --object --about coarse").exits(0);
    assert_eq!(put.out, "mesh/a 1\n");
    site.write("mesh.dat", "more points");
    let put = json(
        &tarn("data put mesh.dat mesh/a --object --json")
            .exits(0)
            .out,
    );
    assert_eq!(
        (&put[0]["number"], &put[0]["bytes"]),
        (&2.into(), &11.into())
    );
    tarn("data put mesh.dat b --object").exits(0);

    let listed = json(&tarn("data objects --json").exits(0).out);
    let seen: Vec<_> = listed.iter().map(|o| (&o["key"], &o["number"])).collect();
    assert_eq!(
        seen,
        [(&"b".into(), &1.into()), (&"mesh/a".into(), &2.into())]
    );
    let versions = tarn("data versions mesh/a").exits(0).out;
    assert!(
        versions.contains("coarse") && versions.lines().count() == 3,
        "{versions}"
    );

    let path = site.path("store/mesh/a/2.obj");
    let found = tarn("data get mesh/a --object").exits(0).out;
    assert_eq!(found.trim_end(), path.display().to_string());
    tarn("data get mesh/a out --object --number 1").exits(0);
    assert_eq!(site.read("out"), "points");
    tarn("data get mesh/a out --object")
        .exits(1)
        .prints("cannot write out");
    let mut bytes = fs::read(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    bytes[3] ^= 1;
    fs::write(&path, &bytes).unwrap();
    tarn("data get mesh/a new --object")
        .exits(1)
        .prints("damaged");
    assert!(!site.path("new").exists());

    tarn("data rm mesh/a --object --number 2").exits(0);
    tarn("data get mesh/a --object --number 2")
        .exits(7)
        .prints("no version 2");
    tarn("data rm mesh/a --object").exits(0);
    tarn("data versions mesh/a").exits(7);
    tarn("data put mesh.dat a/../b --object").exits(2);
    tarn("data put . a --object").exits(2).prints("is no file");
    let made = std::process::Command::new("mkfifo")
        .arg(site.path("fifo"))
        .status();
    assert!(made.unwrap().success());
    tarn("data put fifo a --object")
        .exits(2)
        .prints("is no file");
    tarn("data put mesh.dat c --object --about \u{1b}[31mred\n").exits(0);
    let listed = tarn("data objects").exits(0).out;
    assert!(listed.contains("  \\u{1b}[31mred\\n\n"), "{listed:?}");
    tarn("data put no a --object").exits(7);
    tarn("data get b --object --number 0").exits(2);
    tarn("data get b --object --from n2")
        .exits(7)
        .prints("TARN_SOCKET");
    tarn("data put mesh.dat b --store store")
        .exits(2)
        .prints("--object");
    site.tarn(&["data", "objects"])
        .exits(2)
        .prints("TARN_OBJECTS");
}

/// Each instance puts an object of its own into the dataset; the next step has all of them, and maps the very files that were written.
#[test]
fn a_dataset_of_objects_goes_to_the_next_step_without_a_copy() {
    let site = Site::new(
        r#"
name = "objects"
[data.fields]
dest = "fields"
[data.seen]
dest = "seen"
[[step]]
name = "make"
foreach = ["a", "b", "c"]
run = '''
seq 100000 > $TARN_SCRATCH/n && echo $TARN_ITEM >> $TARN_SCRATCH/n
tarn data put $TARN_SCRATCH/n part/$TARN_ITEM --object --store $TARN_fields
stat -c "%i %n" $(tarn data get part/$TARN_ITEM --object --store $TARN_fields) >> $TARN_WORKFLOW_DIR/inodes
'''
out = ["fields"]
[[step]]
name = "use"
run = '''
tarn data objects --store $TARN_fields --json > $TARN_seen/list
for item in a b c; do
    path=$(tarn data get part/$item --object --store $TARN_fields)
    stat -c %i $path >> $TARN_seen/inodes
    tarn data get part/$item $TARN_seen/$item --object --store $TARN_fields
done
'''
in = ["fields"]
out = ["seen"]
"#,
    );
    site.run().exits(0);
    let listed = json(&site.read("seen/list"));
    assert_eq!(listed.len(), 3, "{listed:?}");
    for item in ["a", "b", "c"] {
        assert!(
            site.read(&format!("seen/{item}"))
                .ends_with(&format!("100000\n{item}\n"))
        );
    }
    let words = |text: &str| {
        let mut all: Vec<String> = text
            .lines()
            .map(|l| l.split(' ').next().unwrap().to_owned())
            .collect();
        all.sort();
        all
    };
    assert_eq!(
        words(&site.read("inodes")),
        words(&site.read("seen/inodes"))
    );
    // A delivered folder is a store too.
    let delivered = site.tarn(&["data", "get", "part/b", "--object", "--store", "fields"]);
    delivered.exits(0).prints("fields/part/b/1.obj");
    let inode = |name: &str| site.path(name).metadata().unwrap().ino();
    assert_eq!(
        inode("fields/part/b/1.obj"),
        inode("fields/part/b/newest.obj")
    );
}
