//! Plans on a real Slurm: mode `observe` changes nothing there, and users see of others what they may.

use crate::setup::Site;
use std::fs;

const MAKE: &str = "\
#SBATCH -N1
#TARN name = \"secretive\"
#TARN data.kept = { size = \"1 MiB\", keep = \"1d\" }
#TARN [[step]]
#TARN out = [\"kept\"]
echo yes > $TARN_kept/it
";
const READ: &str = "\
#SBATCH -N1
#SBATCH --exclusive
#SBATCH -t 5
#TARN name = \"secretive-reader\"
#TARN data.kept.of = \"secretive/kept\"
#TARN [[step]]
#TARN in = [\"kept\"]
[ \"$(cat $TARN_kept/it)\" = yes ]
";

/// Fields of a job that tarn, or a user, can change; in `scontrol`'s order.
fn changeable(site: &Site, job: &str) -> Vec<String> {
    let output = site.root(&["scontrol", "-o", "show", "job", job]);
    let names = [
        "Priority",
        "Nice",
        "Features",
        "Prefer",
        "ReqNodeList",
        "ExcNodeList",
        "Dependency",
        "Reservation",
        "Comment",
        "AdminComment",
        "TimeLimit",
        "EligibleTime",
    ];
    let words = output.split_whitespace().filter(|word| {
        let name = word.split('=').next().unwrap_or_default();
        names.contains(&name)
    });
    words.map(str::to_owned).collect()
}

/// Updates that slurmctld has carried out or refused, by its log.
fn updates(site: &Site) -> usize {
    let log = site.cluster.folder().join("log/slurmctld.log");
    let log = fs::read_to_string(log).expect("its log");
    let words = [
        "_slurm_rpc_update_job",
        "update_node: node",
        "_slurm_rpc_update_node",
    ];
    log.lines()
        .filter(|line| words.iter().any(|word| line.contains(word)))
        .count()
}

pub(crate) fn restart(site: &Site, config: &str) {
    let command = format!("printf '{config}' > /shared/site.toml");
    site.root(&["sh", "-c", &command]);
    site.kill_controller();
    site.start_controller_with("--config /shared/site.toml");
}

/// A job that has all nodes, for a time that is known.
fn occupied(site: &Site, nodes: usize) -> String {
    let job =
        format!("sbatch --parsable -N{nodes} --exclusive -t 10 -o /dev/null --wrap 'sleep 600'");
    let job = site.alice(&["sh", "-c", &job]);
    site.wait_for(&job, "RUNNING");
    job
}

/// The plan as a user sees it.
fn plan(site: &Site, user: &str) -> serde_json::Value {
    let text = site
        .cluster
        .exec(user, &["tarn", "--json", "slurm", "plan"]);
    let text = text.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    serde_json::from_str(text.trim()).expect("JSON")
}

fn of_job<'a>(plan: &'a serde_json::Value, job: &str) -> Option<&'a serde_json::Value> {
    let number: u64 = job.parse().ok()?;
    plan["jobs"].as_array()?.iter().find(|j| j["job"] == number)
}

#[test]
fn observe_plans_and_changes_nothing() {
    let Some(site) = Site::up(2) else { return };
    let made = site.submit("alice", "make.sh", MAKE, &["-w", "node2"]);
    site.wait_for(&made.expect("it is taken"), "COMPLETED");
    restart(&site, "mode = \"observe\"\\n");
    let busy = occupied(&site, 2);
    let before = updates(&site);
    // Slurm is read every 30 s while no job waits: it runs for longer.
    let read = format!("{READ}sleep 35\n");
    let job = site
        .submit("alice", "read.sh", &read, &[])
        .expect("it is taken");
    let first = changeable(&site, &job);
    site.wait_taken_in(&job);
    // Both nodes come free at the same time, so the one with the data is first.
    // A plan may have been made before its data lines were read.
    site.wait("the plan has the job", || {
        let plan = plan(&site, "alice");
        of_job(&plan, &job).is_some_and(|job| !job["workflow"].is_null())
    });
    let own = plan(&site, "alice");
    let planned = of_job(&own, &job).expect("the job");
    assert_eq!(
        planned["nodes"],
        serde_json::json!(["node2"]),
        "{own}\n{}",
        site.logs()
    );
    assert_eq!(planned["user"], "alice", "{own}");
    assert_eq!(planned["runs"], false, "{own}");
    assert_eq!(planned["workflow"], "secretive-reader", "{own}");
    assert!(planned["begin"].as_u64() > own["made"].as_u64(), "{own}");
    let why = site.why("alice", &job);
    assert!(why.contains("planned: node2 in "), "{why}");
    // A job without data lines too, and by the command of runs.
    let why = site.why("alice", &busy);
    assert!(why.contains("planned: it has node1, node2"), "{why}");
    let why = site.alice(&["tarn", "why", &job]);
    assert!(why.contains("planned: node2 in "), "{why}");

    // Another user sees that there is a job, and nothing of whose and what it is.
    let theirs = plan(&site, "bob");
    let planned = of_job(&theirs, &job).expect("the job");
    assert_eq!(planned["nodes"], serde_json::json!(["node2"]), "{theirs}");
    let text = theirs.to_string();
    for secret in ["alice", "secretive", "kept"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let page = "/shared/home/bob/plan.html";
    let done = site
        .cluster
        .exec("bob", &["tarn", "slurm", "plan", "--html", page]);
    done.unwrap_or_else(|e| panic!("{e:#}"));
    let page = fs::read_to_string(site.home("bob").join("plan.html")).expect("the page");
    assert!(page.contains(&job) && !page.contains("alice"), "{page}");
    let refused = site
        .cluster
        .command("bob", &["tarn", "slurm", "why", &job])
        .output();
    assert!(!refused.expect("tarn runs").status.success());

    // All of that changed nothing in Slurm.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!(changeable(&site, &job), first);
    assert_eq!(updates(&site), before, "{}", site.logs());
    let log = fs::read_to_string(site.cluster.shared().join("controller/plan.log"));
    let log = log.expect("the log of plans");
    assert!(log.starts_with("tarn-plans 1\n"), "{log}");
    assert!(log.contains(&format!(" planned job={job} user=")), "{log}");

    // The job runs all the same, and the planned begin is compared with the real one.
    site.alice(&["scancel", &busy]);
    site.wait_for(&job, "COMPLETED");
    site.wait("the begin is counted", || {
        let status = site.alice(&["tarn", "slurm", "status"]);
        status.contains("mode observe") && status.contains(" jobs, median error ")
    });
    assert_eq!(updates(&site), before, "{}", site.logs());

    // By default tarn advises: the same job prefers a node with its data.
    restart(&site, "");
    let busy = occupied(&site, 2);
    let before = updates(&site);
    let job = site
        .submit("alice", "read.sh", READ, &[])
        .expect("it is taken");
    site.wait_taken_in(&job);
    assert!(updates(&site) > before, "{}", site.logs());
    // Both nodes may have it by now.
    let fields = changeable(&site, &job);
    let prefers = fields.iter().any(|word| word.starts_with("Prefer=node"));
    assert!(prefers, "{fields:?}\n{}", site.logs());
    site.alice(&["scancel", &busy]);
    site.wait_for(&job, "COMPLETED");
}

/// Submits a workflow of two jobs.
fn two_steps(site: &Site, name: &str) -> [String; 2] {
    let of = |used: &str| {
        format!(
            "#SBATCH -N1\n#SBATCH --exclusive\n#SBATCH -t 2\n\
             #TARN name = \"{name}\"\n{used}\ntrue\n"
        )
    };
    let makes = of("#TARN [data.mesh]\n#TARN [[step]]\n#TARN out = [\"mesh\"]");
    let reads = of("#TARN [[step]]\n#TARN in = [\"mesh\"]");
    [makes, reads].map(|script| {
        let file = format!("{name}.sh");
        let job = site.submit("alice", &file, &script, &[]);
        job.expect("it is taken")
    })
}

#[test]
fn one_workflow_of_a_user_at_a_time_stands_before_an_ordinary_job() {
    let Some(site) = Site::up(1) else { return };
    occupied(&site, 1);
    let wrap = "#SBATCH -N1\n#SBATCH --exclusive\n#SBATCH -t 2\ntrue\n";
    let ordinary = site.submit("bob", "ordinary.sh", wrap, &[]);
    let ordinary = ordinary.expect("it is taken");
    let first = two_steps(&site, "first");
    let second = two_steps(&site, "second");
    let begins = || {
        let plan = plan(&site, "alice");
        let begin = |job: &String| {
            let job = of_job(&plan, job)?;
            // A plan may have been made before its data lines were read.
            let is_known = !job["workflow"].is_null() || job["user"].is_null();
            job["begin"].as_u64().filter(|_| is_known)
        };
        let all = first.iter().chain([&ordinary]).chain(&second);
        all.map(begin).collect::<Option<Vec<u64>>>()
    };
    // Each of the four would delay the ordinary job by less than it may be.
    let is_in_order = || begins().is_some_and(|begins| begins.is_sorted());
    site.wait("the plan has all jobs in this order", is_in_order);
    // When the first workflow is over, it is the second one's turn.
    for job in &first {
        site.alice(&["scancel", job]);
    }
    let is_before = || {
        let plan = plan(&site, "alice");
        let begin = |job: &str| of_job(&plan, job)?["begin"].as_u64();
        let second = begin(&second[0]).zip(begin(&ordinary));
        second.is_some_and(|(workflow, ordinary)| workflow < ordinary)
    };
    site.wait("the second is before the ordinary job", is_before);
}
