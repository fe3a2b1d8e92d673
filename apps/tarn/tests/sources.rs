//! Possible sources: links, their targets, and things that only look like files; and the files that a step may leave in an
//! output.

mod common;
use common::Site;
use common::workflows::{makes, reads};
use std::os::unix::fs::symlink;

#[test]
fn a_link_to_a_file_is_found_under_the_name_that_was_said() {
    let text = reads(
        "a",
        "ls $TARN_i > $TARN_o/names; cat $TARN_i/sample.fastq > $TARN_o/x",
        "",
    )
    .replace("\"in\"", "\"sample.fastq\"");
    let site = Site::new(&text);
    site.write("store/000123.dat", "reads");
    symlink("store/000123.dat", site.path("sample.fastq")).unwrap();
    site.run().exits(0);
    assert_eq!(
        (site.read("out/names"), site.read("out/x")),
        ("sample.fastq\n".into(), "reads".into())
    );
    // The target of the link counts.
    site.run().exits(0).prints("unchanged");
    site.write("store/000123.dat", "other");
    site.run().exits(0).prints("a done");
    assert_eq!(site.read("out/x"), "other");
}

#[test]
fn a_farm_of_links_is_what_they_lead_to() {
    let each = "name = \"w\"\n[data.i]\nsource = \"in\"\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"a\"\nforeach = \"i/*\"\n\
                in = [\"i/{item}\"]\nout = [\"o\"]\nrun = \"cp -rL $TARN_i/$TARN_ITEM $TARN_o\"\n";
    for text in [&reads("a", "cp -rL $TARN_i/. $TARN_o", ""), each] {
        let site = Site::new(text);
        site.write("store/S1.bam", "one");
        site.write("store/folder/deep/x", "two");
        site.write("store/folder/y", "three");
        site.write("in/own", "four");
        symlink(site.path("store/S1.bam"), site.path("in/S1.bam")).unwrap();
        symlink("../store/folder", site.path("in/linked")).unwrap();
        // Alone it would lead nowhere.
        if text != each {
            symlink("own", site.path("in/inside")).unwrap();
        }
        symlink("../y", site.path("store/folder/deep/up")).unwrap();
        symlink("../../S1.bam", site.path("store/folder/deep/out")).unwrap();
        site.run().exits(0);
        for (file, content) in [
            ("S1.bam", "one"),
            ("linked/deep/x", "two"),
            ("linked/deep/up", "three"),
            ("linked/deep/out", "one"),
            ("own", "four"),
        ] {
            assert_eq!(site.read(&format!("out/{file}")), content, "{file}");
        }
        site.run().exits(0).prints("unchanged");
        // Changes behind a link are noticed too.
        site.write("store/folder/deep/x", "changed");
        site.run().exits(0);
        assert_eq!(site.read("out/linked/deep/x"), "changed");
    }
}

#[test]
fn links_without_end_or_aim_are_refused_by_name() {
    let site = Site::new(&reads("a", "true", ""));
    site.write("in/d/f", "1");
    symlink("../../in", site.path("in/d/round")).unwrap();
    site.run().exits(1).prints("so the tree never ends");
    std::fs::remove_file(site.path("in/d/round")).unwrap();
    site.write("other/f", "1");
    symlink("../other", site.path("in/o")).unwrap();
    symlink("../in/d", site.path("other/back")).unwrap();
    symlink("../../other", site.path("in/d/there")).unwrap();
    site.run().exits(1).prints("so the tree never ends");
    std::fs::remove_dir_all(site.path("other")).unwrap();
    site.run().exits(1).prints("leads nowhere");
}

#[test]
fn a_file_that_only_says_that_it_is_empty_is_refused() {
    let text = reads("a", "cp $TARN_i/cpuinfo $TARN_o", "").replace("\"in\"", "\"/proc/cpuinfo\"");
    let site = Site::new(&text);
    site.run()
        .exits(3)
        .prints("`/proc/cpuinfo` has size 0 but is not empty");
    site.tarn(&["data", "copy", "/proc/cpuinfo", "copy"])
        .exits(1)
        .prints("write it to a file first");
    assert!(!site.path("copy").exists());
    // One that is empty is copied as ever.
    site.write("empty", "");
    site.tarn(&["data", "copy", "empty", "copy"]).exits(0);
    assert_eq!(site.read("copy"), "");
}

#[test]
fn a_pattern_is_no_source_and_the_message_says_what_to_write() {
    let text = reads("a", "cp $TARN_i/* $TARN_o", "").replace("\"in\"", "\"in/*.fa\"");
    let site = Site::new(&text);
    site.write("in/x.fa", "a");
    site.run()
        .exits(3)
        .prints("`source` takes no patterns")
        .prints("`in = [\"i/FILE\"]`");
    site.tarn(&["plan", "workflow.toml"])
        .exits(3)
        .prints("`source` takes no patterns");
}

#[test]
fn a_copy_may_end_in_a_slash() {
    let site = Site::new("");
    site.write("in/f", "1");
    site.tarn(&["data", "copy", "in", "out/"]).exits(0);
    assert_eq!(site.read("out/f"), "1");
    site.tarn(&["data", "copy", "in/f", "none/"])
        .exits(2)
        .prints("there is no folder");
    site.tarn(&["data", "copy", "in/f", "out/"])
        .exits(2)
        .prints("exists already");
}

#[test]
fn a_dead_socket_is_left_out_of_an_output() {
    let python = "import os, socket; os.mkdir(os.environ[\"TARN_r\"] + \"/d\"); \
                  open(os.environ[\"TARN_r\"] + \"/f\", \"w\").write(\"work\"); \
                  socket.socket(socket.AF_UNIX).bind(os.environ[\"TARN_r\"] + \"/d/s\")";
    // The path of a socket is short.
    let tier = tempfile::Builder::new()
        .prefix("t")
        .tempdir_in("/dev/shm")
        .unwrap();
    let run = "python3 $TARN_WORKFLOW_DIR/prog.py";
    let mut site = Site::new(&makes("s", "dest = \"out\"", run));
    site.write("prog.py", python);
    site.options = vec![
        "--tier".into(),
        format!("t={}:64MiB", tier.path().display()),
    ];
    site.run()
        .exits(0)
        .prints("`d/s` in its output `r` is a socket");
    assert_eq!(site.read("out/f"), "work");
    assert!(site.path("out/d").is_dir() && !site.path("out/d/s").exists());
}
