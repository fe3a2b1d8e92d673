//! Jobs that read from an object store and deliver there, with the settings in their users' files.

use crate::setup::Site;
use std::fs;
use tarn_tests::objects::{KEY, Objects, SECRET};

/// A profile of a user's files.
fn profile(name: &str, secret: &str) -> String {
    format!("[{name}]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n")
}

/// Files of a user that nobody else can read.
fn keep(site: &Site, user: &str, name: &str, text: &str) {
    fs::write(site.cluster.shared().join("given"), text).expect("a file");
    let command = format!("umask 077; mkdir -p ~/.aws && cat /shared/given > ~/.aws/{name}");
    let done = site.cluster.exec(user, &["sh", "-c", &command]);
    done.unwrap_or_else(|e| panic!("{e:#}"));
}

/// Reads a tree and an object, and puts a result.
const COUNT: &str = "\
#SBATCH -N1 -n1
#TARN name = \"words\"
#TARN data.books.source = \"s3://site/books/\"
#TARN data.more.source = \"s3://site/more.txt\"
#TARN data.counts.dest = \"s3://site/counts/\"
#TARN [[step]]
#TARN in = [\"books\", \"more\"]
#TARN out = [\"counts\"]
cat $TARN_books/* $TARN_more > $TARN_counts/all; ln -s all $TARN_counts/link
";

fn submitted(site: &Site, user: &str, script: &str) -> String {
    let job = site.submit(user, "job.sh", script, &[]);
    job.unwrap_or_else(|e| panic!("{e:#}"))
}

/// A job is back in the queue, with this reason.
fn is_held(site: &Site, job: &str, reason: &str) {
    site.wait(&format!("job {job} says {reason}"), || {
        site.root(&["scontrol", "show", "job", job])
            .contains(reason)
    });
}

#[test]
fn jobs_read_from_an_object_store_and_deliver_there() {
    let Some(site) = Site::up(2) else { return };
    let store = Objects::start(&site.cluster);
    store.client_output(&["bucket", "site"]);
    let words = ["books/a", "a\n", "books/sub b", "b\n", "more.txt", "more\n"];
    store.client_output(&[&["put", "site"], &words[..]].concat());
    keep(&site, "alice", "credentials", &profile("default", SECRET));
    let config = format!("[default]\nendpoint_url = {}\n", store.endpoint);
    keep(&site, "alice", "config", &config);
    // As a site has it where root is nobody on the file system of homes, only the user can read them.
    let first = submitted(&site, "alice", COUNT);
    site.wait_for(&first, "COMPLETED");
    let result = |wanted: &str| {
        site.wait("the result is outside", || {
            store.keys("site", "counts/") == ["counts/.tarn-manifest", "counts/all"]
                && store.client_output(&["get", "site", "counts/all"]) == wanted
        });
    };
    result("a\nb\nmore\n");
    // The next job of the workflow looks at the sources again; the result is the workflow's own, and replaced.
    store.client_output(&["put", "site", "books/a", "c\n"]);
    let second = submitted(&site, "alice", COUNT);
    site.wait_for(&second, "COMPLETED");
    result("c\nb\nmore\n");
    let read = site.why("alice", &second);
    assert!(!read.contains("cannot"), "{read}");
    // An object that somebody else has put there is not.
    store.client_output(&["put", "site", "counts/all", "mine\n"]);
    let third = submitted(&site, "alice", COUNT);
    site.wait("the reason is told", || {
        site.why("alice", &third).contains("`all`")
    });
    assert_eq!(
        store.client_output(&["get", "site", "counts/all"]),
        "mine\n"
    );
    site.root(&["scancel", "--hurry", &third]);
    // No file that the site keeps or writes has a secret.
    let places = "/shared/controller /shared/controller.log /shared/site-node* /shared/audit-node* /var/log/slurm /run/slurmctld";
    let look = format!("grep -rlaE 'secret_access_key|= ?{SECRET}$|X-Amz' {places}; true");
    assert_eq!(site.root(&["sh", "-c", &look]), "");
}

#[test]
fn who_has_no_keys_or_wrong_ones_is_told() {
    let Some(site) = Site::up(1) else { return };
    let store = Objects::start(&site.cluster);
    store.client_output(&["bucket", "site"]);
    store.client_output(&["put", "site", "books/a", "a\n", "more.txt", "more\n"]);
    // The site has a store of its own, which users need not name.
    let kill = ["pkill", "-KILL", "-x", "tarnd"];
    site.cluster.node(1).exec("root", &kill).expect("pkill");
    let options = format!(
        "--store /scm/tarn:512MiB --volatile --object-endpoint {}",
        store.endpoint
    );
    site.start_node_with(1, &options);
    // Variables that sbatch has are no data's.
    let given = format!("AWS_ACCESS_KEY_ID={KEY},AWS_SECRET_ACCESS_KEY={SECRET}");
    let variables = format!("#SBATCH --export=ALL,{given}\n{COUNT}");
    let job = submitted(&site, "bob", &variables);
    is_held(
        &site,
        &job,
        "no keys for the object store: none for the profile `default` in /shared/home/bob/.aws",
    );
    // Slurm would wait two minutes before it tries again.
    let goes_on = |job: &str| {
        let job = format!("jobid={job}");
        site.root(&["scontrol", "update", &job, "starttime=now"]);
        site.root(&["scontrol", "release", &job[6..]]);
    };
    keep(&site, "bob", "credentials", &profile("default", "guessed"));
    goes_on(&job);
    // The reason for a refused look does not quote the store, the reason for a refused list does.
    is_held(&site, &job, "the keys of the profile `default`");
    keep(&site, "bob", "credentials", &profile("default", SECRET));
    goes_on(&job);
    site.wait_for(&job, "COMPLETED");
    site.wait("the result is outside", || {
        store.keys("site", "counts/all") == ["counts/all"]
    });
    // Another profile, named in the line; a prefix where nothing is.
    keep(&site, "bob", "credentials", &profile("lab", SECRET));
    let named = COUNT.replace("s3://site", "s3://lab@site");
    let job = submitted(
        &site,
        "bob",
        &named
            .replace("\"words\"", "\"lab\"")
            .replace("site/counts/", "site/lab/"),
    );
    site.wait_for(&job, "COMPLETED");
    site.wait("the result is outside", || {
        store.keys("site", "lab/all") == ["lab/all"]
    });
    let nothing = named
        .replace("\"words\"", "\"none\"")
        .replace("/books/", "/nothing/");
    let job = submitted(&site, "bob", &nothing);
    is_held(&site, &job, "there is nothing at s3://lab@site/nothing/");
    // A script that cannot mean anything is refused at once.
    for (place, expected) in [
        ("s3://site", "whole bucket"),
        ("s3://key:secret@site/x/", "no usable place"),
    ] {
        let script = COUNT.replace("s3://site/counts/", place);
        let refused = site
            .submit("bob", "job.sh", &script, &[])
            .expect_err("sbatch refuses");
        let message = format!("{refused:#}");
        assert!(message.contains(expected), "{message}");
    }
}

/// The result takes a while to go out.
const SLOW: &str = "\
#SBATCH -N1 -n1
#TARN name = \"slow\"
#TARN data.end.dest = \"s3://site/end/\"
#TARN [[step]]
#TARN out = [\"end\"]
seq -f %07g 3000000 > $TARN_end/large
";

#[test]
fn a_delivery_of_a_job_that_is_interrupted_goes_on() {
    let Some(site) = Site::up(1) else { return };
    let store = Objects::start(&site.cluster);
    store.client_output(&["bucket", "site"]);
    keep(&site, "alice", "credentials", &profile("default", SECRET));
    let kill = ["pkill", "-KILL", "-x", "tarnd"];
    let options = format!(
        "--store /scm/tarn:512MiB --volatile --external-rate 3MB/s --object-endpoint {}",
        store.endpoint
    );
    let start_anew = || {
        site.cluster.node(1).exec("root", &kill).expect("pkill");
        site.start_node_with(1, &options);
    };
    start_anew();
    let job = submitted(&site, "alice", SLOW);
    site.wait("a part is there", || {
        store.uploads("site").iter().any(|parts| *parts > 0)
    });
    assert_eq!(store.keys("site", "end/"), ["end/.tarn-upload"]);
    start_anew();
    site.wait("the result is outside", || {
        store.keys("site", "end/") == ["end/.tarn-manifest", "end/large"]
    });
    let wanted = site.alice(&["sh", "-c", "seq -f %07g 3000000 | md5sum | cut -d ' ' -f 1"]);
    assert_eq!(
        store.client_output(&["sum", "site", "end/large"]).trim(),
        wanted
    );
    assert!(store.uploads("site").is_empty());
    site.wait_for(&job, "COMPLETED");
}
