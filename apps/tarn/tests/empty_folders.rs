//! An empty folder is data: whatever is tidied on a tier, a replica stays as it was made.

mod common;
use common::Site;
use common::workflows::makes;
use std::fs;

#[test]
fn a_kept_dataset_of_empty_folders_outlives_the_run_and_every_data_command() {
    let run = "mkdir -p $TARN_r/proc0 $TARN_r/proc1/deep";
    let site = Site::new(&makes("w", "keep = \"forever\"", run));
    site.run().exits(0);
    let whole = |folder: &str| {
        let path = site.path(folder);
        path.join("proc0").is_dir() && path.join("proc1/deep").is_dir()
    };
    site.tarn(&["data", "pin", "r"]).exits(0);
    site.tarn(&["data", "get", "r", "back"]).exits(0);
    assert!(whole("back"));
    site.run().exits(0).prints("unchanged");
    site.tarn(&["data", "drain", "r", "out"]).exits(0);
    assert!(whole("out"));
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_was_put_with_an_empty_folder_comes_back_with_it() {
    let site = Site::new("");
    site.write("pd/x/1", "1");
    fs::create_dir_all(site.path("pd/empty")).expect("mkdir");
    let put = [
        &["data", "put", "pd", "pp"],
        &site.options[..]
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()[..],
    ]
    .concat();
    site.tarn(&put).exits(0);
    // Another workflow's end, and another dataset's, tidy the same tier.
    site.write(
        "workflow.toml",
        &makes("w", "keep = \"forever\"", "echo 1 > $TARN_r/a"),
    );
    site.run().exits(0);
    site.tarn(&["data", "rm", "r"]).exits(0);
    site.tarn(&["data", "get", "pp", "back"]).exits(0);
    assert!(site.path("back/empty").is_dir());
    assert_eq!(site.read("back/x/1"), "1");
    site.tarn(&["data", "release", "pp"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_resumed_run_uses_what_was_committed_with_empty_folders() {
    let site = Site::new(
        r#"
name = "w"
[data.mid]
[data.r]
dest = "out"
[[step]]
name = "one"
run = "echo 1 > $TARN_mid/a; mkdir -p $TARN_mid/e/f"
out = ["mid"]
[[step]]
name = "two"
run = "test -e $TARN_WORKFLOW_DIR/go && test -d $TARN_mid/e/f && cp -r $TARN_mid/. $TARN_r"
in = ["mid"]
out = ["r"]
"#,
    );
    site.run().exits(1);
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert!(site.path("out/e/f").is_dir());
    let committed = |r: &&serde_json::Value| r["event"] == "ended" && r["instance"]["step"] == 0;
    assert_eq!(
        site.log().iter().filter(committed).count(),
        1,
        "it ran again"
    );
}
