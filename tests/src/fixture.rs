//! A user of a test cluster at work: a folder in the home, and the commands that are run from there.

use crate::programs::install;
use crate::slurm::{Cluster, Doctor, run_for_output};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A cluster whose users have these programs, or a reason on stderr why there is none. `wants` are features of `slurm-cluster
/// doctor`, `options` those of `slurm-cluster hold`.
///
/// # Panics
/// When it does not come up.
pub fn cluster(
    nodes: usize,
    programs: &[&str],
    wants: &[&str],
    options: &[&str],
) -> Option<Cluster> {
    let doctor = Doctor::ask().expect("slurm-cluster doctor");
    if let Some(why) = doctor.lacks(wants) {
        eprintln!("SKIPPED: no Slurm cluster here: {why}");
        return None;
    }
    let cluster = Cluster::up_with(nodes, options).unwrap_or_else(|e| panic!("{e:#}"));
    install(&cluster, programs).unwrap_or_else(|e| panic!("{e:#}"));
    Some(cluster)
}

/// The folder `work` of a user. Everything here panics where the cluster does not do its part.
#[derive(Debug)]
pub struct Fixture<'a> {
    /// The folder's cluster.
    pub cluster: &'a Cluster,
    /// The folder's owner.
    pub user: &'a str,
    /// As this machine sees it.
    pub folder: PathBuf,
}

impl<'a> Fixture<'a> {
    /// Makes the folder, with this `wf.toml` in it.
    pub fn new(cluster: &'a Cluster, user: &'a str, workflow: &str) -> Self {
        let folder = cluster.shared().join("home").join(user).join("work");
        run_for_output(&mut cluster.command(user, &["mkdir", "-p", "work/in"])).expect("mkdir");
        let fixture = Self {
            cluster,
            user,
            folder,
        };
        fixture.write("wf.toml", workflow);
        fixture
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a file that everybody may read and run.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, open).expect("its mode");
    }

    /// The text of a file.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn command(&self, line: &str) -> Command {
        let line = format!("cd work && {line}");
        self.cluster.command(self.user, &["bash", "-c", &line])
    }

    /// A command in the folder, on the login node, inside a new allocation.
    pub fn allocated(&self, options: &str, command: &str) -> Command {
        self.command(&format!("exec salloc -Q {options} {command}"))
    }

    /// The output of a command in a new allocation, standard error included; the command must succeed.
    pub fn run(&self, options: &str, command: &str) -> String {
        let (status, text) = ended(self.allocated(options, command));
        assert_eq!(status, Some(0), "{command}: {text}");
        text
    }

    /// The output of a command in the folder on the login node, in no allocation.
    pub fn shell(&self, command: &str) -> String {
        ended(self.command(command)).1
    }

    /// A command inside a new allocation, under way.
    pub fn start(&self, options: &str, command: &str) -> Running {
        let mut child = self.allocated(options, command);
        child.stdin(Stdio::null());
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running(child.expect("salloc"))
    }
}

/// A command that is under way.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Its status and all its output, at its end.
    pub fn end(self) -> (Option<i32>, String) {
        let output = self.0.wait_with_output().expect("its end");
        (output.status.code(), text(&output))
    }
}

/// The status of a command, and all its output.
pub fn ended(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().expect("bash");
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}
