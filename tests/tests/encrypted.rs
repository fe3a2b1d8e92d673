//! Encrypted datasets in runs of `tarn run` over the nodes of an allocation, on a real Slurm: results as ever, and in clear nothing on
//! any node's tier, in the state folder or in shared memory, while steps run and after nodes were lost.

#[path = "encrypted/flows.rs"]
mod flows;
#[path = "encrypted/vault.rs"]
mod vault;

use flows::{CHAIN, DRAINED, KEPT, SPREAD, TALK, WIDE};
use tarn_tests::fixture::ended;
use vault::{MARKER, Vault};

const TIER: &str = "--tier scm=/scm/$USER:64MiB";

fn run() -> String {
    format!("tarn run {TIER} wf.toml")
}

/// Two nodes scatter, broadcast and gather, a `foreach` goes over both; ranks come by `tarn exec`, `srun` and, where it is there, mpirun.
/// While the step waits, its data is looked for everywhere.
#[test]
fn steps_of_two_nodes_see_in_clear_what_lies_sealed() {
    let Some(vault) = Vault::new(2, &[]) else {
        return;
    };
    let fixture = vault.fixture(SPREAD);
    fixture.write("solve.sh", TALK);
    let began = fixture.start("-N2 -n16", &run());
    vault.wait_for(&fixture, "waits");
    vault.nothing_in_clear(&fixture, "while a step of two nodes runs");
    // Clear text is where the step is, and nowhere else.
    let spaces = vault.spaces();
    assert_eq!(spaces.len(), 2, "a room on each node: {spaces:?}");
    fixture.write("go", "");
    let (status, text) = began.end();
    assert_eq!(status, Some(0), "{text}");
    vault.nothing_in_clear(&fixture, "after the run");
    assert_eq!(fixture.read("out/sum"), "p0 p1 p2 p3\n", "{text}");
    for rank in 0..4 {
        let wanted = format!("{MARKER} {rank}\nseen\n");
        assert_eq!(fixture.read(&format!("out/p{rank}/text")), wanted);
    }
    // The data for both nodes together has the changes of each; pieces were made where there was space.
    assert_eq!(fixture.read("out/both"), format!("{MARKER} all\n"));
    assert_eq!(fixture.read("out/pieces"), "8\n");
    assert_eq!(fixture.read("out/on"), "node1\nnode2\n");
    assert_eq!(fixture.read("out/ways").trim(), fixture.read("ways").trim());
    vault.leaves_nothing(&fixture);
}

/// The key file is where `tarn run` is, and on no node.
#[test]
fn nodes_need_no_file_of_keys_and_their_copies_of_data_are_as_ever() {
    let Some(vault) = Vault::new(2, &[]) else {
        return;
    };
    let fixture = vault.fixture(SPREAD);
    fixture.write("solve.sh", TALK);
    fixture.write("go", "");
    let own = "mkdir -p /dev/shm/alice && mv ~/.config/tarn /dev/shm/alice/tarn && chmod 700 /dev/shm/alice";
    assert_eq!(fixture.shell(own), "");
    // Streams and windows carry the stored data: ciphertext, by any way.
    for (out, way) in [("out", "tcp"), ("out-sealed", "sealed")] {
        fixture.write("wf.toml", &SPREAD.replace("\"out\"", &format!("\"{out}\"")));
        fixture.shell("rm -rf .tarn");
        let command =
            format!("env XDG_CONFIG_HOME=/dev/shm/alice tarn run {TIER} --transport {way} wf.toml");
        let text = fixture.run("-N2 -n16", &command);
        assert_eq!(
            fixture.read(&format!("{out}/sum")),
            "p0 p1 p2 p3\n",
            "{text}"
        );
        vault.nothing_in_clear(&fixture, way);
    }
    let (status, text) = ended(fixture.allocated("-N2 -n16", &run()));
    assert!(
        status == Some(4) && text.contains("no_encryption") && text.contains("tarn key new"),
        "{text}"
    );
}

#[test]
fn a_lost_node_s_step_is_made_again_elsewhere_and_a_run_goes_on_with_other_tarnds() {
    let Some(vault) = Vault::new(3, &[]) else {
        return;
    };
    let fixture = vault.fixture(CHAIN);
    let running = fixture.start("-N3 -n24 --no-kill", &run());
    let first = vault.wait_for_begin(&fixture, 1);
    vault.kill_tarnd(first);
    let second = vault.wait_for_begin(&fixture, 2);
    assert_ne!(first, second);
    vault.nothing_in_clear(&fixture, "after a node was lost");
    // Data that its tarnd has left is removed, or used, when the node is back; then all are lost.
    for node in 1..=3 {
        vault.kill_tarnd(node);
    }
    let (status, text) = running.end();
    assert_eq!(status, Some(1), "{text}");
    vault.nothing_in_clear(&fixture, "after all were lost");
    // The user's key is another by then: keys that the old one wrapped are wrapped again, and are used.
    let rotated = fixture.shell("tarn key rotate --drop");
    assert!(rotated.contains("were wrapped again"), "{rotated}");
    fixture.write("go", "");
    let output = fixture.run("-N3 -n24", "tarn resume");
    assert_eq!(
        fixture.read("out/text"),
        format!("{MARKER}\nb\n"),
        "{output}"
    );
    assert!(!output.contains("first done"), "{output}");
    vault.leaves_nothing(&fixture);
}

#[test]
fn without_the_key_nothing_goes_on_and_with_another_one_all_is_made_again() {
    let Some(vault) = Vault::new(2, &[]) else {
        return;
    };
    let fixture = vault.fixture(CHAIN);
    let running = fixture.start("-N2 -n16 --no-kill", &run());
    vault.wait_for_begin(&fixture, 1);
    for node in 1..=2 {
        vault.kill_tarnd(node);
    }
    assert_eq!(running.end().0, Some(1));
    fixture.write("go", "");
    fixture.shell("mv ~/.config/tarn/key key.old");
    let (status, text) = ended(fixture.allocated("-N2 -n16", "tarn resume"));
    assert!(status == Some(5) && text.contains("tarn key new"), "{text}");
    assert!(fixture.shell("tarn key new").contains("is in"));
    let output = fixture.run("-N2 -n16", "tarn resume");
    assert!(output.contains("first done"), "{output}");
    assert_eq!(
        fixture.read("out/text"),
        format!("{MARKER}\nb\n"),
        "{output}"
    );
    vault.nothing_in_clear(&fixture, "after all was made again");
    vault.leaves_nothing(&fixture);
}

/// The finds of another user of the nodes, who reads arguments, variables, files and memory there.
#[test]
fn attack_of_another_user_of_the_nodes_finds_neither_keys_nor_data() {
    let Some(vault) = Vault::new(2, &[]) else {
        return;
    };
    let fixture = vault.fixture(SPREAD);
    fixture.write("solve.sh", TALK);
    let running = fixture.start("-N2 -n16", &run());
    vault.wait_for(&fixture, "waits");
    vault.another_user_sees_nothing();
    vault.no_node_has_the_users_key("solve.sh");
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
}

/// Data that makes way for other data is drained encrypted, and brought back.
#[test]
fn what_is_drained_stays_sealed_and_is_brought_back() {
    let Some(vault) = Vault::new(1, &[]) else {
        return;
    };
    let fixture = vault.fixture(DRAINED);
    let running = fixture.start("-N1 -n8", &run());
    vault.wait_for_begin(&fixture, 1);
    vault.nothing_in_clear(&fixture, "while a part is drained");
    let drained = fixture.shell("find external -type f -size +30M | wc -l");
    assert_eq!(drained.trim(), "1");
    assert_eq!(
        fixture.shell(&format!("grep -rl {MARKER} external; true")),
        ""
    );
    fixture.write("go", "");
    let (status, text) = running.end();
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(fixture.read("out/word"), format!("{MARKER}\n"), "{text}");
    assert_eq!(fixture.read("out/size"), "36000000\n", "{text}");
    vault.leaves_nothing(&fixture);
}

/// Kept data is read by the next run, also on another node, and by people; a damaged replica is found out.
#[test]
fn what_is_kept_stays_sealed_and_is_used_again() {
    let Some(vault) = Vault::new(3, &[]) else {
        return;
    };
    let fixture = vault.fixture(KEPT);
    let both = format!("{MARKER} made\n{MARKER} made\n");
    fixture.run("-N2 -n16 -w node1,node2", &run());
    assert_eq!(fixture.read("out/text"), both);
    vault.nothing_in_clear(&fixture, "after the first run");
    assert_eq!(vault.keys(&fixture), 1);
    // Once more with a node that has nothing of it: it comes from the other as it is stored.
    let again =
        |number: &str| fixture.write("wf.toml", &KEPT.replace("# 1", &format!("# {number}")));
    let listed = fixture.shell("tarn data ls");
    let node = if listed.contains("node1") { 1 } else { 2 };
    let options = format!("-N2 -n16 -w node{node},node3");
    again("2");
    let output = fixture.run(&options, &run());
    assert!(!output.contains("make done"), "{output}");
    assert_eq!(fixture.read("out/text"), both);
    vault.nothing_in_clear(&fixture, "after the second run");
    let here = format!("-N1 -n8 -w node{node}");
    let got = fixture.run(&here, "srun -n1 tarn data get stays got");
    assert_eq!(
        fixture.read("got/text"),
        format!("{MARKER} made\n"),
        "{got}"
    );
    vault.damage(node);
    again("3");
    let output = fixture.run(&options, &run());
    // Another replica is read, or it is made again.
    assert!(output.contains("was changed or damaged"), "{output}");
    assert_eq!(fixture.read("out/text"), both);
    assert_eq!(vault.keys(&fixture), 1);
    for node in 1..=3 {
        let gone = "srun -n1 tarn data rm stays";
        ended(fixture.allocated(&format!("-N1 -n8 -w node{node}"), gone));
    }
    vault.leaves_nothing(&fixture);
}

/// One node's rank has more than its job's memory there can hold in clear: the step does not begin, and a message names the
/// node and the reason.
#[test]
fn a_node_with_too_little_memory_is_named_before_the_step_begins() {
    let Some(vault) = Vault::new(2, &["memory"]) else {
        return;
    };
    let fixture = vault.fixture(WIDE);
    fixture.shell("rm -f in/*; mkdir -p in/p0 in/p1; echo small > in/p0/f; head -c 130000000 /dev/zero > in/p1/f");
    let tier = "--tier scm=/scm/$USER:130MiB";
    let (status, text) =
        ended(fixture.allocated("-N2 -n16 --mem=230", &format!("tarn run {tier} wf.toml")));
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("on node `node") && text.contains("its encrypted inputs and outputs take"),
        "{text}"
    );
    assert!(!fixture.path("began").exists(), "{text}");
    // With enough it begins.
    let text = fixture.run("-N2 -n16 --mem=600", &format!("tarn run {tier} wf.toml"));
    assert!(fixture.path("began").exists(), "{text}");
}

#[test]
fn what_is_refused_says_so_before_anything_runs() {
    let Some(vault) = Vault::new(2, &[]) else {
        return;
    };
    let fixture = vault.fixture(CHAIN);
    let refused = |text: &str, options: &str, why: &str| {
        fixture.write("wf.toml", text);
        let command = format!("tarn run {TIER} {options} wf.toml");
        let (status, output) = ended(fixture.allocated("-N2 -n16", &command));
        assert!(
            status == Some(4) && output.contains(why),
            "{status:?}: {output}"
        );
        assert!(output.contains("no_encryption"), "{output}");
        assert_eq!(vault.keys(&fixture), 0);
    };
    refused(CHAIN, "--isolation off", "cannot be encrypted");
    let restart = CHAIN.replace(
        "[\"a\"]\nout = [\"b\"]",
        "[\"a\"]\nout = [\"b\"]\nrestart = \"files\"",
    );
    refused(&restart, "", "`restart`");
    let shared = WIDE.replace("case:scatter", "case:shared");
    refused(&shared, "", "shared");
}
