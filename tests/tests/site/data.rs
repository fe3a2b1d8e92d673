//! Data that outlives jobs: two users, grants from one to the other, and their project's data.

use crate::attacks::ran;
use crate::setup::Site;
use std::fs;

/// The output of a user's `tarn`, or why it refuses.
fn tarn(site: &Site, user: &str, words: &[&str]) -> Result<String, String> {
    let all: Vec<&str> = std::iter::once("tarn")
        .chain(words.iter().copied())
        .collect();
    site.cluster.exec(user, &all).map_err(|e| format!("{e:#}"))
}

fn made(site: &Site, user: &str, words: &[&str]) -> String {
    tarn(site, user, words).unwrap_or_else(|e| panic!("{words:?}: {e}\n{}", site.logs()))
}

#[test]
fn what_is_granted_is_read_and_what_is_revoked_is_refused_with_the_reason() {
    let Some(site) = Site::up(1) else { return };
    let make = "\
#TARN name = \"foam\"
#TARN data.mesh.keep = \"workflow\"
#TARN [[step]]
#TARN out = [\"mesh\"]
umask 022; echo points > $TARN_mesh/points; echo done
";
    assert_eq!(ran(&site, "alice", make), "done\n");
    site.wait("it is there", || {
        let output = tarn(&site, "alice", &["data", "show", "foam/mesh"]);
        output.is_ok_and(|output| output.contains("on node1"))
    });
    let read = "\
#TARN name = \"mine\"
#TARN data.grid.of = \"alice/foam/mesh\"
#TARN [[step]]
#TARN in = [\"grid\"]
cat $TARN_grid/points; (echo x > $TARN_grid/points) 2> /dev/null && echo written; ls /scm/tarn/u7001 2> /dev/null
";
    // Data that is not granted, and data that is not there, is refused alike; nobody but Alice grants it.
    let refused = |name: &str, why: &str| {
        let read = read.replace("alice/foam/mesh", name);
        let job = site.submit("bob", "read.sh", &format!("#SBATCH -N1 -n1\n{read}"), &[]);
        let job = job.unwrap_or_else(|e| panic!("{e:#}"));
        site.wait("the reason is told", || {
            site.root(&["scontrol", "show", "job", &job]).contains(why)
        });
        site.root(&["scancel", "--hurry", &job]);
    };
    refused("alice/foam/mesh", "not yours to read");
    refused("alice/foam/nothing", "not yours to read");
    for words in [
        &["data", "show", "alice/foam/mesh"][..],
        &["data", "grant", "alice/foam/mesh", "bob"],
        &["data", "rm", "alice/foam/mesh"],
        &["data", "keep", "alice/foam/mesh", "1d"],
        &["data", "release", "alice/foam/mesh"],
        &["data", "revoke", "alice/foam/mesh", "alice"],
        &["data", "rm", "alice/../mesh"],
        &["data", "grant", "alice/foam/me\u{1b}[2Jsh", "bob"],
    ] {
        let output = tarn(&site, "bob", words).expect_err("bob may not");
        assert!(!output.contains('\u{1b}'), "{output:?}");
    }
    assert_eq!(made(&site, "bob", &["data", "ls", "--site"]), "");
    // Granted, it is read where it is stored, and not written.
    made(&site, "alice", &["data", "grant", "foam/mesh", "bob"]);
    assert!(made(&site, "alice", &["data", "show", "foam/mesh"]).contains("read by bob"));
    assert!(made(&site, "bob", &["data", "ls"]).contains("alice/foam/mesh"));
    assert_eq!(ran(&site, "bob", read), "points\n", "{}", site.logs());
    let copies = "find /scm/tarn -name points | wc -l";
    let copies = site.cluster.node(1).exec("root", &["sh", "-c", copies]);
    assert_eq!(copies.expect("a count").trim(), "1");
    // Alice has it read again; nobody else has. A change on its node is found.
    let verify = |user: &str| tarn(&site, user, &["data", "verify", "alice/foam/mesh"]);
    let output = verify("alice").expect("it is whole");
    assert!(
        output.starts_with("whole") && output.contains("node1"),
        "{output}"
    );
    assert!(verify("bob").is_err_and(|why| why.contains("somebody else")));
    let tree = "/scm/tarn/u7001/d/foam/mesh/1/0/tree";
    let change = |text: &str| {
        let script = format!("chmod u+w {tree}/points; printf '{text}\n' > {tree}/points");
        let done = site.cluster.node(1).exec("alice", &["sh", "-ec", &script]);
        done.expect("a change of her own");
    };
    change("pOints");
    let why = verify("alice").expect_err("it is damaged");
    assert!(why.contains("not what was published"), "{why}");
    change("points");
    verify("alice").expect("it is whole again");
    // Revoked, the job that waits is refused at its gate, and the next one when it comes.
    let waits = format!("#SBATCH -N1 -n1\n{read}");
    let busy = site.hold("node1");
    let job = site.submit("bob", "wait.sh", &waits, &[]);
    let job = job.unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("it is taken in", || {
        site.why("bob", &job).contains("taken in")
    });
    made(&site, "alice", &["data", "revoke", "foam/mesh", "bob"]);
    site.alice(&["scancel", &busy]);
    site.wait("it is refused", || {
        site.why("bob", &job).contains("revoked")
    });
    site.root(&["scancel", "--hurry", &job]);
    refused("alice/foam/mesh", "not yours to read");
    made(&site, "alice", &["data", "rm", "foam/mesh"]);
    assert_eq!(made(&site, "alice", &["data", "ls", "--site"]), "");
    // Each sees their own part of the use.
    let used = made(&site, "alice", &["--json", "usage", "--by", "user"]);
    assert_eq!(used.lines().count(), 1, "{used}");
    assert!(used.contains("\"name\":\"alice\""), "{used}");
    assert!(made(&site, "root", &["usage", "--since", "1d"]).contains("bob"));
}

#[test]
fn a_projects_dataset_is_made_and_changed_by_its_members_across_workflows() {
    let Some(site) = Site::up(2) else { return };
    let make = "\
#SBATCH -w node1
#TARN name = \"a\"
#TARN data.forcing.project = \"climate\"
#TARN [[step]]
#TARN out = [\"forcing\"]
umask 077; echo alices > $TARN_forcing/one; echo done
";
    assert_eq!(ran(&site, "alice", make), "done\n");
    let there = |version: &str| {
        site.wait("it is there", || {
            let output = tarn(&site, "bob", &["data", "show", "@climate/forcing"]);
            output.is_ok_and(|output| output.contains(version))
        });
    };
    there("version 1: ");
    site.wait("its first version lies on node1", || {
        made(&site, "bob", &["data", "show", "@climate/forcing"]).contains("on node1")
    });
    // Bob's job changes it on the other node; Alice reads the data of both.
    let change = "\
#SBATCH -w node2
#TARN name = \"b\"
#TARN data.forcing.project = \"climate\"
#TARN [[step]]
#TARN inout = [\"forcing\"]
cat $TARN_forcing/one; echo bobs > $TARN_forcing/two
";
    assert_eq!(ran(&site, "bob", change), "alices\n", "{}", site.logs());
    site.wait("its second version lies on node2", || {
        let output = made(&site, "bob", &["data", "show", "@climate/forcing"]);
        output
            .lines()
            .any(|line| line.contains("version 2: ") && line.contains("on node2"))
    });
    let read = "\
#SBATCH -w node1
#TARN name = \"c\"
#TARN data.forcing.project = \"climate\"
#TARN [[step]]
#TARN in = [\"forcing\"]
cat $TARN_forcing/one $TARN_forcing/two
";
    assert_eq!(
        ran(&site, "alice", read),
        "alices\nbobs\n",
        "{}",
        site.logs()
    );
    let listed = made(&site, "alice", &["data", "ls", "--of", "@climate"]);
    assert_eq!(listed.matches("@climate/forcing").count(), 2, "{listed}");
    assert!(made(&site, "bob", &["usage", "--by", "project"]).contains("@climate"));
    // A member removes data that the other one has made.
    made(&site, "bob", &["data", "rm", "@climate/forcing"]);
    for node in [1, 2] {
        site.wait("nothing is left", || {
            let command = "find /scm/tarn/p7100 -type f 2> /dev/null | wc -l";
            let left = site.cluster.node(node).exec("root", &["sh", "-c", command]);
            left.is_ok_and(|output| output.trim() == "0")
        });
    }
}

/// A store that the node's worker has no way to, as one with a ticket: of a group that only a job's own steps can take on.
#[test]
fn a_jobs_own_step_copies_where_only_it_can() {
    let Some(site) = Site::up(1) else { return };
    let home = site.home("alice");
    let prepare = "mkdir -p vault/grid && echo mesh > vault/grid/mesh && chgrp -R 64999 vault && chmod -R ug=rwX,o= vault \
        && cp /usr/bin/env ticket && chgrp 64999 ticket && chmod 2755 ticket";
    let prepare = format!("cd /shared/home/alice && {prepare}");
    site.root(&["sh", "-c", &prepare]);
    let refused = "\
#TARN name = \"ticket\"
#TARN data.grid.source = \"vault/grid\"
#TARN [[step]]
#TARN in = [\"grid\"]
true
";
    let refused = site.submit("alice", "refused.sh", refused, &[]);
    let refused = refused.expect("it is taken");
    site.wait("the gate says why", || {
        let why = site.why("alice", &refused);
        why.contains("vault") && why.contains("ermission denied")
    });
    site.alice(&["scancel", &refused]);
    let first = "\
#TARN name = \"foam\"
#TARN data.grid = { size = \"1 MiB\" }
#TARN [[step]]
#TARN out = [\"grid\"]
set -e
~/ticket tarn data copy ~/vault/grid $TARN_grid
";
    let second = "\
#TARN name = \"foam\"
#TARN data.result = { size = \"1 MiB\" }
#TARN [[step]]
#TARN in = [\"grid\"]
#TARN out = [\"result\"]
set -e
sed s/^/fine-/ $TARN_grid/grid/mesh > $TARN_result/u
~/ticket tarn data copy $TARN_result ~/vault/run7
";
    for (name, script) in [("first.sh", first), ("second.sh", second)] {
        fs::write(home.join(name), format!("#!/bin/bash\n{script}")).expect("a script");
    }
    let submitted = site.alice(&["sh", "-c", "cd && tarn submit first.sh second.sh"]);
    let last = submitted.lines().last().and_then(|l| l.split(' ').next());
    site.wait_for(last.expect("two jobs"), "COMPLETED");
    let out = fs::read_to_string(home.join("vault/run7/u")).expect("the result");
    assert_eq!(out, "fine-mesh\n");
}
