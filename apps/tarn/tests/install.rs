//! `tarn slurm install` in folders as administrators have them: written files, refusals, and the rest when it is taken out.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const SLURM_CONF: &str = "ClusterName=here\nInclude nodes.conf\n# the end\n";
const PLUGSTACK: &str = "optional /usr/lib/other.so\n";

/// An image of a host with Slurm's files.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(host.etc()).unwrap();
        host.write("slurm.conf", SLURM_CONF);
        host.write("plugstack.conf", PLUGSTACK);
        host.write("nodes.conf", "NodeName=n[1-2]\n");
        host.write("spank_tarn.so", "a library");
        host.write("tarn", "a program");
        host
    }

    fn etc(&self) -> PathBuf {
        self.0.path().join("etc/slurm")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.etc().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.etc().join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.etc()).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|e| e.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn install(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tarn"));
        command
            .args(["slurm", "install", "--root"])
            .arg(self.0.path());
        for default in [
            ["--conf", "/etc/slurm"],
            ["--program", "/etc/slurm/tarn"],
            ["--plugin", "/etc/slurm/spank_tarn.so"],
        ] {
            if !words.contains(&default[0]) {
                command.args(default);
            }
        }
        command.args(words).output().unwrap()
    }

    /// Refused with this exit code and these words, and nothing has changed.
    fn refused(&self, code: i32, words: &[&str]) {
        let (names, before) = (self.names(), self.read("slurm.conf"));
        let output = self.install(&[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!((self.names(), self.read("slurm.conf")), (names, before));
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn well(output: &Output) {
    assert!(
        output.status.success(),
        "{}{}",
        stdout(output),
        stderr(output)
    );
}

#[test]
fn what_is_written_can_be_taken_out() {
    let host = Host::new();
    let before = host.names();
    assert_eq!(host.install(&["--check"]).status.code(), Some(5));
    well(&host.install(&[]));
    let slurm = host.read("slurm.conf");
    assert!(slurm.starts_with(SLURM_CONF), "{slurm}");
    assert!(slurm.contains("\nBurstBufferType=burst_buffer/lua\nJobSubmitPlugins=lua\n"));
    let plugstack = host.read("plugstack.conf");
    assert!(plugstack.contains("\nrequired /etc/slurm/spank_tarn.so\n"));
    let lua = host.read("burst_buffer.lua");
    assert!(lua.contains("os.getenv(\"TARN\") or \"/etc/slurm/tarn\"\n"));
    assert!(lua.contains("local conf = \"/etc/slurm\"\n"));
    let submit = host.read("job_submit.lua");
    assert!(submit.contains("local dram, larger = nil, nil\n"));
    well(&host.install(&["--check"]));
    let again = host.install(&[]);
    assert!(!stdout(&again).contains("written"), "{}", stdout(&again));
    // Lines that the site writes meanwhile stay.
    host.write("slurm.conf", &format!("{slurm}More=1\n"));
    well(&host.install(&["--remove"]));
    assert_eq!(host.read("slurm.conf"), format!("{SLURM_CONF}More=1\n"));
    assert_eq!(host.read("plugstack.conf"), PLUGSTACK);
    assert_eq!(host.names(), before);
    well(&host.install(&["--remove"]));
}

#[test]
fn a_check_finds_what_was_changed() {
    let host = Host::new();
    let options = ["--dram", "192 GiB", "--memory-mode", "big"];
    well(&host.install(&options));
    let submit = host.read("job_submit.lua");
    assert!(submit.contains("local dram, larger = 196608, \"big\"\n"));
    well(&host.install(&[&options[..], &["--check"]].concat()));
    for (name, from, to) in [
        ("slurm.conf", "JobSubmitPlugins=lua", "JobSubmitPlugins=no"),
        ("burst_buffer.lua", "slurm_bb_pre_run", "slurm_bb_pre_ran"),
        ("plugstack.conf", "required", "optional"),
    ] {
        let text = host.read(name);
        assert!(text.contains(from));
        host.write(name, &text.replace(from, to));
        let output = host.install(&[&options[..], &["--check"]].concat());
        assert_eq!(output.status.code(), Some(5), "{name}");
        let lines = stdout(&output);
        let no: Vec<&str> = lines.lines().filter(|l| l.starts_with("no")).collect();
        assert!(no.len() == 1 && no[0].contains(name), "{name}: {lines}");
        host.write(name, &text);
    }
}

#[test]
fn what_the_site_has_is_not_touched() {
    let host = Host::new();
    host.write("nodes.conf", "burstbuffertype = burst_buffer/datawarp\n");
    host.refused(5, &["burst_buffer/datawarp", "take that line out"]);

    let host = Host::new();
    host.write("burst_buffer.lua", "-- ours\n");
    host.refused(5, &["burst_buffer.lua is there and not tarn's"]);

    let host = Host::new();
    host.write(
        "slurm.conf",
        "# tarn: written by `tarn slurm install`, taken out by `tarn slurm install --remove`\n",
    );
    host.refused(5, &["mend that by hand"]);

    // All else works without tarn's job_submit.lua.
    for (name, text, expected) in [
        (
            "job_submit.lua",
            "-- ours\n",
            "job_submit.lua is the site's own",
        ),
        ("nodes.conf", "JobSubmitPlugins=other\n", "add `,lua`"),
    ] {
        let host = Host::new();
        host.write(name, text);
        let output = host.install(&[]);
        well(&output);
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(!host.read("slurm.conf").contains("JobSubmit"));
        assert_eq!(host.read(name), text);
        well(&host.install(&["--remove"]));
        assert_eq!(host.read(name), text);
    }
}

#[test]
fn what_would_stop_all_jobs_is_refused() {
    let host = Host::new();
    fs::remove_file(host.etc().join("spank_tarn.so")).unwrap();
    host.refused(7, &["spank_tarn.so is not there", "scripts/spank.sh"]);

    let host = Host::new();
    fs::remove_file(host.etc().join("slurm.conf")).unwrap();
    let output = host.install(&[]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));

    let host = Host::new();
    for words in [
        ["--program", "relative/tarn"],
        ["--plugin", "/a b/spank_tarn.so"],
        ["--conf", "/etc/\"slurm"],
        ["--memory-mode", "a|b"],
    ] {
        let output = host.install(&words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        let why = ["cannot stand in Slurm's files", "a feature is letters"];
        assert!(why.iter().any(|why| text.contains(why)), "{text}");
    }
}

#[test]
fn links_and_rights_stay() {
    let host = Host::new();
    let kept = host.0.path().join("kept.conf");
    fs::rename(host.etc().join("slurm.conf"), &kept).unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&kept, host.etc().join("slurm.conf")).unwrap();
    well(&host.install(&[]));
    assert!(host.etc().join("slurm.conf").is_symlink());
    assert!(fs::read_to_string(&kept).unwrap().contains("BurstBuffer"));
    assert_eq!(
        fs::metadata(&kept).unwrap().permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn a_switch_refuses_new_jobs_alone() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("job.sh");
    fs::write(
        &script,
        "#!/bin/bash\n#TARN [data.made]\n#TARN [[step]]\n#TARN out = [\"made\"]\n",
    )
    .unwrap();
    let tarn = |words: &[&str], more: Option<&Path>| {
        Command::new(env!("CARGO_BIN_EXE_tarn"))
            .arg("slurm")
            .args(words)
            .arg("--conf")
            .arg(folder.path())
            .args(more)
            .output()
            .unwrap()
    };
    let check = || tarn(&["check"], Some(&script));
    let checked = check();
    well(&checked);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        text.contains("ok: ") && text.contains("writes `made`"),
        "{text}"
    );
    well(&tarn(&["off"], None));
    assert_eq!(check().status.code(), Some(5));
    let off = Command::new(env!("CARGO_BIN_EXE_tarn"))
        .args(["slurm", "off", "--conf"])
        .arg(folder.path())
        .args(["new", "drives", "come"])
        .output();
    well(&off.unwrap());
    let text = stderr(&check());
    assert!(
        text.contains("new drives come") && text.contains("jobs without them"),
        "{text}"
    );
    well(&tarn(&["on"], None));
    well(&check());
    well(&tarn(&["on"], None));
    // An option among the words of the reason is one.
    for (option, code) in [("--help", 0), ("-h", 0), ("--no-such-option", 2)] {
        let output = Command::new(env!("CARGO_BIN_EXE_tarn"))
            .args(["slurm", "off", "--conf"])
            .arg(folder.path())
            .args(["we", "move", option])
            .output()
            .unwrap();
        let text = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains("tarn slurm off"), "{text}");
        well(&check());
    }
    let off = Command::new(env!("CARGO_BIN_EXE_tarn"))
        .args(["slurm", "off", "we", "move", "--conf"])
        .arg(folder.path())
        .output();
    well(&off.unwrap());
    let text = stderr(&check());
    assert!(text.contains("we move;"), "{text}");
}

/// Of a command to be run, options are from its first word on the command's own, and before it tarn's.
#[test]
fn options_before_a_command_are_tarns() {
    let run_tarn = |words: &[&str]| {
        let mut tarn = Command::new(env!("CARGO_BIN_EXE_tarn"));
        tarn.env_remove("TARN_EXEC_DIR")
            .env_remove("TARN_EXEC_DIRS");
        tarn.args(words).output().unwrap()
    };
    let before: [(&[&str], &str); 4] = [
        (&["exec", "node1"], "tarn exec"),
        (&["enter"], "tarn enter"),
        (&["h5", "exec", "--folder", "."], "tarn h5 exec"),
        (&["verbs", "exec"], "tarn verbs exec"),
    ];
    for (words, usage) in before {
        for (option, code) in [("--help", 0), ("-h", 0), ("--no-such-option", 2)] {
            let words = [words, &[option, "true"][..]].concat();
            let output = run_tarn(&words);
            let text = stdout(&output) + &stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
            assert!(
                text.contains(&format!("Usage: {usage}")),
                "{words:?}: {text}"
            );
        }
        for option in ["--help", "--no-such-option"] {
            let words = [words, &["no-such-program", option][..]].concat();
            let text = stdout(&run_tarn(&words));
            assert!(!text.contains("Usage:"), "{words:?}: {text}");
        }
    }
}

#[test]
fn what_a_job_makes_encrypted_without_a_size_is_refused_at_sbatch() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("job.sh");
    let check = |size: &str| {
        let text = format!(
            "#!/bin/bash\n#TARN data.made = {{ encrypt = true{size} }}\n#TARN [[step]]\n#TARN out = [\"made\"]\n"
        );
        fs::write(&script, text).unwrap();
        Command::new(env!("CARGO_BIN_EXE_tarn"))
            .args(["slurm", "check", "--conf"])
            .arg(folder.path())
            .arg(&script)
            .output()
            .unwrap()
    };
    well(&check(", size = \"1 MiB\""));
    let refused = check("");
    assert!(!refused.status.success());
    let text = stderr(&refused);
    for word in ["line 2", "`made` cannot be encrypted", "add `size`"] {
        assert!(text.contains(word), "{text}");
    }
}
