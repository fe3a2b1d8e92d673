//! `tarn run` on real files and processes: results, reruns, output.

mod common;
use common::Site;
use common::workflows::makes;

const WORDS: &str = r#"
name = "words"
[data.text]
source = "books"
[data.counts]
[data.total]
dest = "result"
[[step]]
name = "count"
foreach = "text/*.txt"
run = "wc -w < $TARN_text/$TARN_ITEM > $TARN_counts/$TARN_ITEM"
in = ["text/{item}"]
out = ["counts"]
[[step]]
name = "sum"
run = "cat $TARN_counts/*.txt | awk '{s+=$1} END {print s}' > $TARN_total/words"
in = ["counts"]
out = ["total"]
"#;

fn words() -> Site {
    let site = Site::new(WORDS).with(&["--nodes", "2"]);
    site.write("books/a.txt", "one two three\n");
    site.write("books/b.txt", "four five\n");
    site.write("books/c.txt", "six\n");
    site.write("books/notes.md", "not counted\n");
    site
}

#[test]
fn the_result_is_right_and_nothing_is_left() {
    let site = words();
    site.run().exits(0).prints("report");
    assert_eq!(site.read("result/words"), "6\n");
    site.leaves_nothing_on_its_tier();
    assert!(site.path(".tarn/runs/words-1/report.html").exists());
}

#[test]
fn a_second_run_runs_nothing_and_a_change_runs_what_it_changes() {
    let site = words();
    site.run().exits(0);
    let again = site.run().exits(0).prints("unchanged");
    assert!(!again.err.contains("done in"), "{}", again.err);
    site.write("books/b.txt", "four five seven\n");
    let changed = site.run().exits(0);
    assert_eq!(site.read("result/words"), "7\n");
    assert!(changed.err.contains("sum done"), "{}", changed.err);
    // Touched, not changed: content counts.
    std::thread::sleep(std::time::Duration::from_millis(20));
    site.write("books/b.txt", "four five seven\n");
    let touched = site.run().exits(0);
    assert!(!touched.err.contains("done in"), "{}", touched.err);
    let text = site
        .read("workflow.toml")
        .replace("print s}", "print s+100}");
    site.write("workflow.toml", &text);
    site.run().exits(0);
    assert_eq!(site.read("result/words"), "107\n");
}

#[test]
fn stage_through_gives_the_same_result_with_more_traffic() {
    let site = words();
    let text = site
        .read("workflow.toml")
        .replace("name = \"words\"", "name = \"words\"\nexternal = \"ext\"");
    site.write("workflow.toml", &text);
    let mut arguments = site.run_arguments();
    arguments.extend(["--policy", "stage-through", "--json"]);
    let ran = site.tarn(&arguments).exits(0);
    assert_eq!(site.read("result/words"), "6\n");
    let summary = ran.summary();
    assert!(
        summary["bytes"]["external_out"].as_u64() > Some(2),
        "{summary}"
    );
    site.leaves_nothing_on_its_tier();
}

#[test]
fn every_policy_gives_the_same_result_and_is_named() {
    let orders = ["fcfs", "greedy", "easy", "sjf-easy", "heft", "same-nodes"];
    let cached = orders.map(|o| format!("{o}+cache"));
    let mut names = [&orders[..], &["greedy:max-wait=5s", "data", "energy"]].concat();
    names.extend(cached.iter().map(String::as_str));
    let text = WORDS.replace("name = \"words\"", "name = \"words\"\nexternal = \"ext\"");
    for name in names {
        let site = words();
        site.write("workflow.toml", &text);
        let mut arguments = site.run_arguments();
        arguments.extend(["--policy", name]);
        let planned = [&["plan"], &arguments[1..]].concat();
        let plan = site.tarn(&planned).exits(0);
        assert!(plan.out.contains("sum"), "{name}: {}", plan.out);
        arguments.push("--json");
        let ran = site.tarn(&arguments).exits(0);
        assert_eq!(site.read("result/words"), "6\n", "{name}");
        let summary = ran.summary();
        assert_eq!(summary["policy"], name);
        let written = name.replace("max-wait", "patience");
        assert_eq!(site.log()[0]["options"]["policy"], written);
        // The three counts go outside with every policy that does not keep data on the nodes.
        let out = summary["bytes"]["external_out"].as_u64();
        let kept = matches!(name, "data" | "energy");
        assert_eq!(out == Some(2), kept, "{name}: {summary}");
        let noted = ran.err.contains("energy decides like data");
        assert_eq!(noted, name == "energy", "{name}: {}", ran.err);
        site.leaves_nothing_on_its_tier();
    }
}

#[test]
fn a_policy_that_does_not_exist_is_refused_with_those_that_do() {
    let site = words();
    let mut arguments = site.run_arguments();
    arguments.extend(["--policy", "fifo"]);
    let ran = site.tarn(&arguments).exits(2);
    assert!(
        ran.err.contains("`fifo`") && ran.err.contains("sjf-easy"),
        "{}",
        ran.err
    );
    assert!(!site.path(".tarn").exists());
    arguments.pop();
    arguments.push("easy+cache");
    site.tarn(&arguments)
        .exits(3)
        .prints("--policy easy+cache has nowhere to put counts");
}

#[test]
fn plan_moves_nothing_and_names_every_step() {
    let site = words();
    let mut arguments = site.run_arguments();
    arguments[0] = "plan";
    let plan = site.tarn(&arguments).exits(0);
    assert!(
        plan.out.contains("count[a.txt]") && plan.out.contains("sum"),
        "{}",
        plan.out
    );
    assert!(!site.path("result").exists());
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_mistake_is_shown_with_its_place_before_anything_starts() {
    let site = Site::new("name = \"w\"\n[[step]]\nname = \"a\"\nrunn = \"true\"\n");
    let ran = site.run().exits(3);
    assert!(ran.err.contains("workflow.toml:4"), "{}", ran.err);
    assert!(ran.err.contains("did you mean"), "{}", ran.err);
    assert!(!site.path(".tarn").exists());
    site.tarn(&["run", "missing.toml"])
        .exits(7)
        .prints("missing.toml");
    site.tarn(&["run"]).exits(2);
}

#[test]
fn status_why_and_data_tell_what_happened() {
    let text = WORDS.replace("[data.counts]", "[data.counts]\nkeep = \"forever\"");
    let site = words();
    site.write("workflow.toml", &text);
    site.run().exits(0);
    site.tarn(&["status"]).exits(0).prints("done");
    site.tarn(&["why", "sum"]).exits(0).prints("ends first");
    site.tarn(&["why", "summ"]).exits(7).prints("did you mean");
    let ls = site.tarn(&["data", "ls"]).exits(0);
    assert!(ls.out.contains("counts"), "{}", ls.out);
    site.tarn(&["data", "where", "counts"])
        .exits(0)
        .prints("/parts/");
    site.tarn(&["data", "get", "counts", "copied"]).exits(0);
    assert_eq!(site.read("copied/a.txt").trim(), "3");
    site.tarn(&["data", "get", "counts", "copied"])
        .exits(0)
        .prints("has all of it already");
    site.write("copied/a.txt", "edited");
    site.tarn(&["data", "get", "counts", "copied"])
        .exits(2)
        .prints("exists already");
    site.tarn(&["data", "pin", "counts"]).exits(0);
    site.tarn(&["data", "drain", "counts", "drained"])
        .exits(0)
        .prints("freed");
    assert_eq!(site.read("drained/c.txt").trim(), "1");
    site.leaves_nothing_on_its_tier();
    site.tarn(&["data", "rm", "counts"]).exits(7);
    site.tarn(&["cancel"]).exits(7).prints("not running");
    // The drained data is gone from the nodes: its producers run again when it is needed.
    site.run().exits(0);
}

#[test]
fn a_folder_can_be_put_on_a_node_and_fetched() {
    let site = words();
    let tier = site.options[1].clone();
    site.tarn(&["data", "put", "books", "library", "--tier", &tier])
        .exits(0);
    site.tarn(&["data", "ls"]).exits(0).prints("library");
    site.tarn(&["data", "get", "library", "back"]).exits(0);
    assert_eq!(site.read("back/a.txt"), "one two three\n");
    site.tarn(&["data", "release", "library"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn nodes_and_doctor_describe_this_machine() {
    let site = words();
    let tier = site.options[1].clone();
    let nodes = site
        .tarn(&["nodes", "--nodes", "2", "--tier", &tier, "--json"])
        .exits(0);
    let value: serde_json::Value = serde_json::from_str(&nodes.out).expect("JSON");
    assert_eq!(value["tiers"].as_array().map(Vec::len), Some(2));
    assert_eq!(value["tiers"][0]["capacity"], 64 << 20);
    site.tarn(&["doctor"]).exits(0).prints("host");
}

#[test]
fn what_a_step_leaves_undeclared_is_removed_and_reported() {
    let run = "echo 1 > $TARN_r/x; echo 2 > junk";
    let site = Site::new(&makes("w", "dest = \"out\"", run));
    site.run().exits(0).prints("junk");
    site.leaves_nothing_on_its_tier();
}
