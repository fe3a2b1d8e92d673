//! Two ordinary users on one site.

use crate::setup::Site;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// What a job of a user says; whether it ended well does not matter.
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
    let said = ran(&site, "bob", &looks);
    assert!(
        !said.contains("precious") && !said.contains("secret\n"),
        "{said}"
    );
    site.wait_for(&job, "COMPLETED");
    let said = ran(&site, "bob", &looks);
    assert!(!said.contains("precious"), "{said}");
    // A workflow of the same name is another one.
    let read = "#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = [\"secret\"]\ncat $TARN_secret/a\n";
    let reader = site.submit("bob", "read.sh", &format!("#SBATCH -N1 -n1\n{read}"), &[]);
    let reader = reader.unwrap_or_else(|e| panic!("{e:#}"));
    site.wait("the reason is told", || {
        site.root(&["scontrol", "show", "job", &reader])
            .contains("nobody makes dataset")
    });
    // The stages of jobs are Slurm's to say, not a user's.
    for words in [
        &["tarn", "slurm", "teardown", &job][..],
        &["tarn", "slurm", "post-run", &job],
        &["tarn", "slurm", "pre-run", &job],
        &["tarn", "slurm", "data-out", &job],
        &["tarn", "slurm", "end", "w"],
        &["tarn", "slurm", "why", &job],
    ] {
        let said = site.cluster.exec("bob", words);
        assert!(said.is_err(), "{words:?}: {said:?}");
    }
    // It is there all the time, for who has made it.
    let said = ran(&site, "alice", read);
    assert_eq!(said, "precious\n");
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
    let said = ran(&site, "alice", script);
    assert_eq!(said, "mesh\n");
}

/// What somebody says to the controller's port who is not `tarn`: `1` for each that goes on, `0` for each that is shut out.
const STRANGER: &str = r#"
import os, socket, subprocess, struct
def meet():
    s = socket.create_connection(("login", 7411)); s.settimeout(20)
    head = b""
    while len(head) < 40: head += s.recv(40 - len(head))
    assert head[:8] == b"TARNSITE"
    return s, head[8:]
def say(s, body): s.sendall(struct.pack("<I", len(body)) + body)
def goes_on(s):
    try: return s.recv(1) != b""
    except TimeoutError: return True
    except OSError: return False
def proof(nonce, key, name=b"the controller", reader="0"):
    payload = b"tarn site 1\0" + nonce + key + bytes(32) + name
    return subprocess.run(["munge", "--restrict-uid", reader], input=payload, capture_output=True, check=True).stdout.strip()
def told(what, s): print(what, int(goes_on(s)), flush=True)
s, nonce = meet(); say(s, b"MUNGE:AwQFAAD" + b"A" * 200 + b":"); told("forged", s)
s, nonce = meet(); s.sendall(struct.pack("<I", 1 << 31)); told("endless", s)
first, nonce = meet(); credential = proof(nonce, bytes(32))
s, other = meet(); say(s, credential); told("replayed", s)
s, nonce = meet(); say(s, proof(nonce, bytes(32), b"node1")); told("for-a-node", s)
s, nonce = meet(); say(s, proof(nonce, bytes(32), reader=str(os.getuid()))); told("for-another", s)
s, nonce = meet(); say(s, proof(nonce, bytes(32))); body = b'"Nodes"'; s.sendall(struct.pack("<I", len(body)) + bytes(32) + body); told("unproven", s)
"#;

#[test]
fn attack_who_asks_from_another_host_is_who_munge_says() {
    let Some(site) = Site::up(1) else { return };
    let make = "#TARN name = \"w\"\n#TARN data.secret.keep = \"forever\"\n#TARN [[step]]\n#TARN out = [\"secret\"]\ntrue\n";
    ran(&site, "alice", make);
    let node = site.cluster.node(1);
    let asked = |user: &str, words: &[&str]| node.exec(user, words);
    // As on the controller's own host.
    let list = ["tarn", "data", "ls", "--site"];
    site.wait("it is there", || {
        asked("alice", &list).is_ok_and(|said| said.contains("w/secret"))
    });
    let status = asked("alice", &["tarn", "slurm", "status"]);
    assert!(status.is_ok_and(|said| said.contains("node1")));
    let bobs = asked("bob", &list).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(!bobs.contains("secret"), "{bobs}");
    for words in [
        &["tarn", "data", "rm", "alice/w/secret"][..],
        &["tarn", "data", "show", "alice/w/secret"],
        &["tarn", "data", "grant", "alice/w/secret", "bob"],
        &["tarn", "slurm", "why", "1"],
        &["tarn", "slurm", "teardown", "1"],
    ] {
        let said = asked("bob", words);
        assert!(said.is_err(), "{words:?}: {said:?}");
    }
    let said = asked("bob", &["/usr/bin/python3", "-c", STRANGER]);
    let said = said.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()));
    let lines: Vec<&str> = said.lines().collect();
    let shut_out = [
        "forged 0",
        "endless 0",
        "replayed 0",
        "for-a-node 0",
        "for-another 0",
        "unproven 0",
    ];
    assert_eq!(lines, shut_out);
    // Nobody is shut out by those that only connect.
    let crowd = "import socket, time\nall = [socket.create_connection(('login', 7411)) for _ in range(200)]\nprint('there', flush=True)\ntime.sleep(5)";
    let mut crowd = node.command("bob", &["/usr/bin/python3", "-c", crowd]);
    let mut crowd = crowd.stdout(Stdio::piped()).spawn().expect("python3");
    let mut there = String::new();
    let out = crowd.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut there).expect("a line");
    assert_eq!(there, "there\n");
    assert!(site.alice(&list).contains("w/secret"));
    crowd.wait().expect("its end");
    site.wait("others are served again", || {
        asked("alice", &list).is_ok_and(|said| said.contains("w/secret"))
    });
}
