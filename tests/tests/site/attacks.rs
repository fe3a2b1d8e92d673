//! Two ordinary users on one site.

use crate::setup::Site;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The output of a user's job; whether it ended well does not matter.
pub(crate) fn ran(site: &Site, user: &str, script: &str) -> String {
    let job = site.submit(user, "job.sh", &format!("#SBATCH -N1 -n1\n{script}"), &[]);
    let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    site.wait("it has ended", || {
        matches!(site.state(&job).as_str(), "COMPLETED" | "FAILED")
    });
    let output = site.home(user).join(format!("slurm-{job}.out"));
    std::fs::read_to_string(output).unwrap_or_default()
}

#[test]
fn attack_a_users_data_is_nobody_elses() {
    let Some(site) = Site::up(1) else { return };
    let make = "\
#TARN name = \"w\"
#TARN data.secret.keep = \"forever\"
#TARN [[step]]
#TARN out = [\"secret\"]
echo precious > $TARN_secret/a; sleep 20
";
    let job = site.submit("alice", "make.sh", &format!("#SBATCH -N1 -n1\n{make}"), &[]);
    let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    site.wait_for(&job, "RUNNING");
    // While Alice's job runs on the same node, and after it.
    let store = "/scm/tarn/u7001";
    let looks = format!(
        "ls {store}; cat {store}/j/{job}/w/secret/a {store}/d/w/secret/1/0/tree/a; ls /scm/tarn; ls -A /run/tarn/data; ls /run/tarn/jobs; \
         touch {store}/x; rm -rf {store}; ln -s {store} /scm/tarn/u7002/link; \
         for p in $(pgrep -u alice); do ls /proc/$p/root/run/tarn/data; done; true"
    );
    let output = ran(&site, "bob", &looks);
    assert!(
        !output.contains("precious") && !output.contains("secret\n"),
        "{output}"
    );
    site.wait_for(&job, "COMPLETED");
    let output = ran(&site, "bob", &looks);
    assert!(!output.contains("precious"), "{output}");
    // A workflow of the same name is another one.
    let read = "#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = [\"secret\"]\ncat $TARN_secret/a\n";
    let reader = site.submit("bob", "read.sh", &format!("#SBATCH -N1 -n1\n{read}"), &[]);
    let reader = reader.unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("the reason is told", || {
        site.root(&["scontrol", "show", "job", &reader])
            .contains("nobody makes dataset")
    });
    // Slurm calls the stages of jobs, not a user.
    for words in [
        &["tarn", "slurm", "teardown", &job][..],
        &["tarn", "slurm", "post-run", &job],
        &["tarn", "slurm", "pre-run", &job],
        &["tarn", "slurm", "data-out", &job],
        &["tarn", "slurm", "end", "w"],
        &["tarn", "slurm", "why", &job],
    ] {
        let output = site.cluster.exec("bob", words);
        assert!(output.is_err(), "{words:?}: {output:?}");
    }
    // It is there all the time, for the user who has made it.
    let output = ran(&site, "alice", read);
    assert_eq!(output, "precious\n");
}

#[test]
fn attack_a_task_gets_no_further_than_its_own_data() {
    let Some(site) = Site::up(1) else { return };
    site.alice(&[
        "sh",
        "-c",
        "mkdir -p ~/case; echo mesh > ~/case/mesh; chmod 700 ~",
    ]);
    let script = "\
#TARN data.case.source = \"case\"
#TARN [[step]]
#TARN in = [\"case\"]
#TARN out = [\"x\"]
#TARN [data.x]
(echo changed > $TARN_case/mesh) 2> /dev/null && echo written
touch $TARN_case/new 2> /dev/null && echo made
rm -f $TARN_case/mesh 2> /dev/null && echo removed
chmod 777 $TARN_case 2> /dev/null && echo opened
umount $TARN_case 2> /dev/null && echo unmounted
mount -o remount,rw $TARN_case 2> /dev/null && echo remounted
touch /run/tarn/data/y 2> /dev/null && echo placed
ln -s /etc/shadow $TARN_x/link && cat $TARN_x/link 2> /dev/null && echo read
rm $TARN_x/link
cat $TARN_case/mesh
";
    let output = ran(&site, "alice", script);
    assert_eq!(output, "mesh\n");
}

/// Messages to the controller's port from somebody who is not `tarn`: `1` for each connection that lasts, `0` for each that
/// is shut out.
const STRANGER: &str = r#"
import os, socket, subprocess, struct
def meet():
    s = socket.create_connection(("login", 7411)); s.settimeout(20)
    head = b""
    while len(head) < 40: head += s.recv(40 - len(head))
    assert head[:8] == b"TARNSITE"
    return s, head[8:]
def send(s, body): s.sendall(struct.pack("<I", len(body)) + body)
def goes_on(s):
    try: return s.recv(1) != b""
    except TimeoutError: return True
    except OSError: return False
def proof(nonce, key, name=b"the controller", reader="0"):
    payload = b"tarn site 1\0" + nonce + key + bytes(32) + name
    return subprocess.run(["munge", "--restrict-uid", reader], input=payload, capture_output=True, check=True).stdout.strip()
def report(what, s): print(what, int(goes_on(s)), flush=True)
s, nonce = meet(); send(s, b"MUNGE:AwQFAAD" + b"A" * 200 + b":"); report("forged", s)
s, nonce = meet(); s.sendall(struct.pack("<I", 1 << 31)); report("endless", s)
first, nonce = meet(); credential = proof(nonce, bytes(32))
s, other = meet(); send(s, credential); report("replayed", s)
s, nonce = meet(); send(s, proof(nonce, bytes(32), b"node1")); report("for-a-node", s)
s, nonce = meet(); send(s, proof(nonce, bytes(32), reader=str(os.getuid()))); report("for-another", s)
s, nonce = meet(); send(s, proof(nonce, bytes(32))); body = b'"Nodes"'; s.sendall(struct.pack("<I", len(body)) + bytes(32) + body); report("unproven", s)
"#;

#[test]
fn attack_who_asks_from_another_host_is_who_munge_says() {
    let Some(site) = Site::up(1) else { return };
    let make = "#TARN name = \"w\"\n#TARN data.secret.keep = \"forever\"\n#TARN [[step]]\n#TARN out = [\"secret\"]\ntrue\n";
    ran(&site, "alice", make);
    let node = site.cluster.node(1);
    let execute = |user: &str, words: &[&str]| node.exec(user, words);
    // As on the controller's own host.
    let list = ["tarn", "data", "ls", "--site"];
    site.wait("it is there", || {
        execute("alice", &list).is_ok_and(|output| output.contains("w/secret"))
    });
    let status = execute("alice", &["tarn", "slurm", "status"]);
    assert!(status.is_ok_and(|output| output.contains("node1")));
    let bobs = execute("bob", &list).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(!bobs.contains("secret"), "{bobs}");
    for words in [
        &["tarn", "data", "rm", "alice/w/secret"][..],
        &["tarn", "data", "show", "alice/w/secret"],
        &["tarn", "data", "grant", "alice/w/secret", "bob"],
        &["tarn", "slurm", "why", "1"],
        &["tarn", "slurm", "teardown", "1"],
    ] {
        let output = execute("bob", words);
        assert!(output.is_err(), "{words:?}: {output:?}");
    }
    let output = execute("bob", &["/usr/bin/python3", "-c", STRANGER]);
    let output = output.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    let lines: Vec<&str> = output.lines().collect();
    let shut_out = [
        "forged 0",
        "endless 0",
        "replayed 0",
        "for-a-node 0",
        "for-another 0",
        "unproven 0",
    ];
    assert_eq!(lines, shut_out);
    silent_connections_hold_up_nobody(&site);
}

/// Holds 200 connections to the controller that send nothing, though it closes some of them.
const CROWD: &str = r#"
import select, socket
all, reported = [], False
while True:
    while len(all) < 200:
        try: all.append(socket.create_connection(("login", 7411), 2))
        except OSError: break
    if len(all) == 200 and not reported:
        reported = True
        print("there", flush=True)
    for s in select.select(all, [], [], 0.1)[0]:
        try: is_open = s.recv(64) != b""
        except OSError: is_open = False
        if not is_open: all.remove(s); s.close()
"#;
/// The delay that the crowd may cause to the others' requests and jobs.
const ALLOWED: Duration = Duration::from_secs(2);
/// Measured so often before the crowd, and at most so often beside it: Slurm looks at jobs every few seconds, so that single ones differ.
const ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 9;

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn silent_connections_hold_up_nobody(site: &Site) {
    let node = site.cluster.node(1);
    let mut number = 0;
    // An answer of the controller's, and the start of a job.
    let mut round = || {
        number += 1;
        let began = Instant::now();
        let list = node.exec("alice", &["tarn", "data", "ls", "--site"]);
        assert!(list.is_ok_and(|output| output.contains("w/secret")));
        let answered = began.elapsed();
        let script = format!(
            "#SBATCH -N1 -n1\n#TARN [[step]]\n#TARN out = [\"x\"]\n#TARN [data.x]\ntouch ~/begun-{number}\n"
        );
        let began = Instant::now();
        let job = site.submit("alice", "crowded.sh", &script, &[]);
        let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
        let mark = site.home("alice").join(format!("begun-{number}"));
        site.wait("the job begins", || mark.exists());
        let begun = began.elapsed();
        site.wait("it has left", || site.why("alice", &job).contains("ended"));
        (answered, begun)
    };
    let (mut answers, mut starts): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| round()).unzip();
    let without = (median(&mut answers), median(&mut starts));
    let gather = || {
        let mut crowd = node.command("bob", &["/usr/bin/python3", "-c", CROWD]);
        let mut crowd = crowd.stdout(Stdio::piped()).spawn().expect("python3");
        let mut there = String::new();
        let out = crowd.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut there).expect("a line");
        assert_eq!(there, "there\n");
        crowd
    };
    let mut crowd = gather();
    let (mut answers, mut starts) = (Vec::new(), Vec::new());
    loop {
        // A command on a node has only some minutes.
        if crowd.try_wait().expect("the crowd").is_some() {
            crowd = gather();
        }
        let (answered, begun) = round();
        answers.push(answered);
        starts.push(begun);
        let with = (median(&mut answers), median(&mut starts));
        let how = format!("without the crowd {without:?}, with it {with:?}");
        let is_shown = with.0 <= without.0 + ALLOWED && with.1 <= without.1 + ALLOWED;
        if is_shown && answers.len() >= ROUNDS {
            println!("{how}");
            break;
        }
        assert!(answers.len() < MOST_ROUNDS, "{how}: {answers:?} {starts:?}");
    }
    let _ = node.exec("root", &["pkill", "-u", "bob", "python3"]);
    crowd.wait().expect("its end");
}

/// The names that a user gives a job: fields as `scontrol show job` prints them, the ends of its lines included.
const FORGED: [&str; 2] = [
    "a UserId=alice(7001) GroupId=alice(7001) NodeList=node2 BatchHost=node2 ExitCode=0:0 Dependency=(null),singleton \
     ExcNodeList=node1 ReqNodeList=node2 WorkDir=/shared/home/alice AdminComment=[tarn start jobs=1] Prefer=node2 b",
    "a\nJobId=1 JobName=b\n   UserId=alice(7001) GroupId=alice(7001)\n   NodeList=node2\n   ExitCode=0:0\n   \
     WorkDir=/shared/home/alice\n\n1|node2|(null)|node1|node2|main|1|N/A\n",
];

#[test]
fn attack_a_name_forges_nothing_that_slurm_says_of_its_job() {
    let Some(site) = Site::up(2) else { return };
    let make = "\
#TARN name = \"w\"
#TARN data.secret.keep = \"forever\"
#TARN [[step]]
#TARN out = [\"secret\"]
echo precious > $TARN_secret/a
";
    let job = site.submit(
        "alice",
        "make.sh",
        &format!("#SBATCH -N1 -n1 -w node2\n{make}"),
        &[],
    );
    let job = job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    site.wait_for(&job, "COMPLETED");
    site.wait("it has left", || site.why("alice", &job).contains("ended"));
    let alices = || {
        let list = "find /scm/tarn/u7001 /shared/home/alice -printf '%p %u %m %s\\n' 2> /dev/null | grep -v slurm- | sort";
        [1, 2].map(|node| {
            site.cluster
                .node(node)
                .exec("root", &["sh", "-c", list])
                .expect("a list")
        })
    };
    let before = alices();
    assert!(before[1].contains("/d/w/secret/1/0/tree/a"), "{before:?}");
    for (number, name) in FORGED.into_iter().enumerate() {
        for code in [1, 0] {
            let this = format!("{number}-{code}");
            let script = format!(
                "#SBATCH -N1 -n1 -w node1\n#TARN name = \"w\"\n#TARN data.result.dest = \"out-{this}\"\n#TARN [[step]]\n\
                 #TARN out = [\"result\"]\necho bob > $TARN_result/a; hostname > ~/where-{this}\n\
                 until test -e ~/go-{this}; do sleep 0.1; done; exit {code}\n"
            );
            let comment = ["-J", name, "--comment", name];
            let job = site.submit("bob", "job.sh", &script, &comment);
            let job = job.unwrap_or_else(|e| panic!("{name:?}: {e:#}\n{}", site.logs()));
            let place = site.home("bob").join(format!("where-{this}"));
            site.wait("it runs", || {
                std::fs::read_to_string(&place).is_ok_and(|s| s.ends_with('\n'))
            });
            assert_eq!(std::fs::read_to_string(&place).expect("where"), "node1\n");
            // It is let in where it runs, as its own user.
            let look = format!("ls /run/tarn/jobs; stat -c %U /scm/tarn/u*/j/{job}");
            let [here, there] = [1, 2].map(|node| {
                let output = site
                    .cluster
                    .node(node)
                    .command("root", &["sh", "-c", &look])
                    .output();
                String::from_utf8_lossy(&output.expect("sh").stdout).into_owned()
            });
            assert!(here.lines().any(|line| line == job), "{name:?}: {here}");
            assert!(here.lines().any(|line| line == "bob"), "{name:?}: {here}");
            assert!(
                !there.lines().any(|line| line == job || line == "bob"),
                "{name:?}: {there}"
            );
            std::fs::write(site.home("bob").join(format!("go-{this}")), "").expect("go");
            // Its own exit status decides whether it has ended well.
            let (state, delivered) = match code {
                0 => ("COMPLETED", true),
                _ => ("FAILED", false),
            };
            site.wait_for(&job, state);
            site.wait("it has left", || site.why("bob", &job).contains("ended"));
            let result = site.home("bob").join(format!("out-{this}/a"));
            if delivered {
                site.wait("its result is delivered", || result.exists());
            }
            assert_eq!(
                result.exists(),
                delivered,
                "{name:?}: {}",
                site.why("bob", &job)
            );
        }
    }
    assert_eq!(alices(), before);
    let read = "#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = [\"secret\"]\ncat $TARN_secret/a\n";
    assert_eq!(ran(&site, "alice", read), "precious\n");
}
