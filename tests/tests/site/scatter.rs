//! Inputs that are scattered over a job's nodes by rank.

use crate::setup::Site;
use std::fs;

/// Eight entries of ranks of 1 MiB each, and one of no rank.
const DECOMPOSE: &str = "\
#SBATCH -N1 -n1 -w node1
#TARN name = \"foam\"
#TARN data.fields = { scatter = \"p{rank}\", size = \"20 MiB\" }
#TARN [[step]]
#TARN out = [\"fields\"]
set -e
for r in 0 1 2 3 4 5 6 7; do mkdir $TARN_fields/p$r; head -c 1048576 /dev/urandom > $TARN_fields/p$r/x; done
mkdir $TARN_fields/system; echo rules > $TARN_fields/system/dict
";

/// Each node lists what it has; each rank reads its entries, and writes where it may.
const LOOK: &str = "\
srun --ntasks-per-node=1 -n $SLURM_NNODES sh -c 'cd $TARN_fields && find . -type f | sort | tr \"\\n\" \" \" > ~/has-$(hostname)'
srun sh -c 'cat $TARN_fields/system/dict $TARN_fields/p$SLURM_PROCID/x > /dev/null || echo missing >> ~/wrong'
";

fn submit(site: &Site, user: &str, script: &str, words: &[&str]) -> String {
    let job = site.submit(user, "job.sh", script, words);
    job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
}

/// The files that a node has listed for a job; the list is removed.
fn has(site: &Site, user: &str, node: usize) -> String {
    let path = site.home(user).join(format!("has-node{node}"));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    assert!(!site.home(user).join("wrong").exists(), "{}", site.logs());
    text.trim().to_owned()
}

/// KiB of files in a store, of what jobs are given (`j`) or of parts (`d`); linked files count once.
fn kib(site: &Site, node: usize, which: &str) -> u64 {
    let command = format!("du -sck /scm/tarn/u*/{which} 2> /dev/null | tail -1 | cut -f1");
    let output = site
        .cluster
        .node(node)
        .exec("root", &["sh", "-c", &command]);
    output
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[test]
fn each_node_of_a_job_has_the_entries_of_its_ranks_and_no_others() {
    let Some(site) = Site::up(2) else { return };
    let first = submit(&site, "alice", DECOMPOSE, &[]);
    site.wait_for(&first, "COMPLETED");
    // It changes them: a private copy, which is all that the second node has of them.
    let solve = format!(
        "#SBATCH -N2 -n8 --ntasks-per-node=4\n#TARN name = \"foam\"\n#TARN data.fields.scatter = \"p{{rank}}\"\n#TARN data.fields.size = \"20 MiB\"\n#TARN [[step]]\n#TARN inout = [\"fields:scatter\"]\n{LOOK}srun sh -c 'hostname > $TARN_fields/p$SLURM_PROCID/where'\n"
    );
    let solved = submit(&site, "alice", &solve, &[]);
    site.wait_for(&solved, "COMPLETED");
    site.wait("it has left", || {
        site.why("alice", &solved).contains("ended")
    });
    assert_eq!(
        has(&site, "alice", 1),
        "./p0/x ./p1/x ./p2/x ./p3/x ./system/dict"
    );
    assert_eq!(
        has(&site, "alice", 2),
        "./p4/x ./p5/x ./p6/x ./p7/x ./system/dict"
    );
    let on_second = kib(&site, 2, "d");
    assert!(
        (4096..5120).contains(&on_second),
        "{on_second} KiB on node2"
    );
    // Read in another division: six ranks on the first node, two on the second. What is there is linked, the rest comes.
    let read = format!(
        "#SBATCH -N2 -n12 --ntasks-per-node=6\n#TARN name = \"foam\"\n#TARN [[step]]\n#TARN in = [\"fields:scatter\"]\n{}sleep 600\n",
        LOOK.lines().next().expect("a line").to_owned() + "\n"
    );
    let job = submit(&site, "alice", &read, &[]);
    site.wait("both nodes have said what they have", || {
        let home = site.home("alice");
        (1..=2).all(|n| fs::metadata(home.join(format!("has-node{n}"))).is_ok_and(|m| m.len() > 0))
    });
    let files = |ranks: std::ops::Range<u32>| {
        let of = |r| format!("./p{r}/where ./p{r}/x ");
        ranks.map(of).collect::<String>() + "./system/dict"
    };
    assert_eq!(has(&site, "alice", 1), files(0..6));
    assert_eq!(has(&site, "alice", 2), files(6..8));
    // Cancelled while it has them, it leaves nothing but the parts.
    site.alice(&["scancel", &job]);
    site.wait("its folders are gone", || {
        kib(&site, 1, "j") + kib(&site, 2, "j") <= 8
    });
    site.alice(&["tarn", "slurm", "end", "foam"]);
    site.wait("nothing is left", || {
        site.alice(&["tarn", "data", "ls", "--site"]).is_empty()
    });
}

#[test]
fn a_source_is_divided_for_each_reader_and_after_a_node_is_lost() {
    Site::with_jobs_put_back(3, is_divided_for_each);
}

/// False if Slurm did not begin the script after the loss of its node.
fn is_divided_for_each(site: &Site) -> bool {
    let case = "mkdir -p case/system; for r in 0 1 2 3; do mkdir case/p$r; echo $r > case/p$r/x; done; echo rules > case/system/dict; chmod 700 case";
    site.alice(&["sh", "-c", case]);
    let read = |sleep: &str| {
        format!(
            "#SBATCH -N2 -n4 --ntasks-per-node=2\n#TARN name = \"ranks\"\n#TARN data.fields = {{ source = \"case\", scatter = \"p{{rank}}\" }}\n#TARN [[step]]\n#TARN in = [\"fields:scatter\"]\n{LOOK}{sleep}echo over >> ~/over\n"
        )
    };
    let job = submit(
        site,
        "alice",
        &read("[ -e ~/lost ] || sleep 600\n"),
        &["-w", "node[1-2]"],
    );
    let over = site.home("alice").join("over");
    site.wait("it runs", || site.home("alice").join("has-node2").exists());
    site.wait_for(&job, "RUNNING");
    assert_eq!(has(site, "alice", 1), "./p0/x ./p1/x ./system/dict");
    assert_eq!(has(site, "alice", 2), "./p2/x ./p3/x ./system/dict");
    // A node loses power: Slurm has the job run again, on other nodes.
    site.alice(&["touch", "lost"]);
    let node = site.cluster.node(2);
    node.power_cut().unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("Slurm has put it back", || site.state(&job) == "PENDING");
    // The first script may have come so far while it was being ended.
    site.alice(&["rm", "-f", "over"]);
    site.start_again(&job, &["nodelist=node1,node3"]);
    if !site.begins_again("it has run again", || over.exists()) {
        return false;
    }
    assert_eq!(has(site, "alice", 3), "./p2/x ./p3/x ./system/dict");
    node.start().unwrap_or_else(|e| panic!("{e:#}"));
    site.start_node(2);
    site.wait("nothing is left on the lost node", || {
        kib(site, 2, "j") <= 4
    });

    // Somebody else's workflow of the same names, at the same time: neither sees anything of the other's.
    let _ = fs::remove_file(&over);
    let mine = submit(site, "alice", &read("sleep 600\n"), &["-w", "node[1-2]"]);
    site.wait("it has its ranks", || {
        site.home("alice").join("has-node2").exists()
    });
    let own = case.replace("echo $r", "echo bob");
    site.cluster
        .exec("bob", &["sh", "-c", &own])
        .unwrap_or_else(|e| panic!("{e:#}"));
    let looks = format!(
        "{LOOK}srun sh -c 'cat /scm/tarn/u7001/j/*/v/fields/p*/x > ~/seen-$SLURM_PROCID 2> ~/refused-$SLURM_PROCID; cat $TARN_fields/p*/x > ~/own-$SLURM_PROCID'; touch ~/over\n"
    );
    let theirs = read("").replace(&format!("{LOOK}echo over >> ~/over\n"), &looks);
    let job = submit(site, "bob", &theirs, &["-w", "node[1-2]", "--mem=10"]);
    site.wait_for(&job, "COMPLETED");
    let text = |name: &str| fs::read_to_string(site.home("bob").join(name)).unwrap_or_default();
    for rank in 0..4 {
        assert_eq!(text(&format!("seen-{rank}")), "");
        assert!(
            text(&format!("refused-{rank}")).contains("denied"),
            "{}",
            site.logs()
        );
        assert_eq!(text(&format!("own-{rank}")), "bob\nbob\n");
    }
    site.alice(&["scancel", "--hurry", &mine]);
    site.wait("nothing is left", || {
        (1..=3).all(|node| kib(site, node, "j") <= 8)
    });
    true
}
