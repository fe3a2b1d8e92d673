//! Whether Slurm, and the site, are as tarn needs them: `tarn slurm install --check`, `tarn doctor --site`. docs/admin/site.md.

use super::command::run_command;
use super::controller::ControllerClient;
use crate::error::{CliError, CliResult};
use crate::finding::{CheckFinding, finding, found};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tarn_proto::site::{ControllerReply, ControllerRequest, NODE_PORT};
use tarn_types::codes::Exit;

/// How long a process that is there may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// States of jobs whose data is on nodes, or will be.
const ALIVE: &str = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STAGE_OUT";

/// The configuration of slurmctld.
pub(super) fn of_slurm() -> Vec<CheckFinding> {
    let config = match run_command("scontrol", &["show", "config"]) {
        Ok(config) => config,
        Err(e) => return vec![finding("slurmctld", false, e.to_string())],
    };
    let value = |key: &str| {
        let lines = config.lines().filter_map(|line| line.split_once('='));
        let found = lines.filter(|(name, _)| name.trim() == key);
        found
            .map(|(_, value)| value.trim())
            .next_back()
            .unwrap_or("")
    };
    let restart = "restart slurmctld after `tarn slurm install`";
    let has = |key: &str, wanted: &str| {
        let set = value(key);
        if set.split(',').any(|word| word == wanted) {
            return Ok(format!("{key}={set}"));
        }
        Err(unmet(format!(
            "it runs with {key}={set} instead of {wanted}: {restart}"
        )))
    };
    let version = value("SLURM_VERSION");
    vec![
        finding("slurmctld", true, format!("Slurm {version}")),
        found("stages", has("BurstBufferType", "burst_buffer/lua")),
        found("stages", stages(value("PluginDir"))),
        found("options", has("JobSubmitPlugins", "lua")),
        found("plug-in", options()),
    ]
}

/// The error of a check: the deviation, and what to do.
fn unmet(text: String) -> CliError {
    CliError::new(Exit::State, text)
}

/// Slurm's script is loaded, and reaches tarn.
fn stages(plugins: &str) -> CliResult<String> {
    let library = Path::new(plugins).join("burst_buffer_lua.so");
    if !plugins.is_empty() && !library.exists() {
        return Err(unmet(format!(
            "{} is not there: install Slurm's plug-ins for Lua (Debian: slurm-wlm-basic-plugins)",
            library.display()
        )));
    }
    let status = run_command("scontrol", &["show", "bbstat"])?;
    if status.contains(" free of ") {
        return Ok("burst_buffer.lua reaches the controller".into());
    }
    let text = format!("burst_buffer.lua reports: {}", status.trim());
    Err(unmet(text))
}

/// The SPANK plug-in is loaded on this host.
fn options() -> CliResult<String> {
    let help = Command::new("srun").arg("--help").output();
    let help = help.map_err(|e| unmet(format!("`srun --help`: {e}")))?;
    if String::from_utf8_lossy(&help.stdout).contains("--workflow-start") {
        return Ok("srun has --workflow-start: the SPANK plug-in is loaded".into());
    }
    Err(unmet(format!(
        "srun has no --workflow-start: the SPANK plug-in is not loaded here; {}",
        String::from_utf8_lossy(&help.stderr).trim()
    )))
}

/// The controller, which runs on this host, and its nodes.
pub(crate) fn of_controller() -> Vec<CheckFinding> {
    let mut all = Vec::new();
    match ControllerClient::of_environment().ask_once(&ControllerRequest::Nodes, TIMEOUT) {
        Ok(ControllerReply::Nodes(nodes)) => {
            let names = |up: bool| {
                let those = nodes.iter().filter(|node| node.up == up);
                those.map(|node| node.name.as_str()).collect::<Vec<_>>()
            };
            let (up, down) = (names(true), names(false));
            all.push(finding("controller", true, "it answers on this host"));
            let (count, of) = (up.len(), nodes.len());
            all.push(if down.is_empty() && count > 0 {
                finding("nodes", true, format!("all {of} take orders"))
            } else {
                finding(
                    "nodes",
                    false,
                    format!(
                        "{count} of {of} take orders; not {}: is `tarnd --site` running there?",
                        down.join(", ")
                    ),
                )
            });
        }
        Ok(other) => all.push(finding(
            "controller",
            false,
            format!("it replied {other:?}"),
        )),
        Err(e) => all.push(finding("controller", false, e.to_string())),
    }
    all
}

/// This host as a node of a site.
pub(crate) fn of_node() -> Vec<CheckFinding> {
    let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, NODE_PORT));
    let daemon = match TcpStream::connect_timeout(&listens, TIMEOUT) {
        Ok(_) => Ok(format!("it listens at port {NODE_PORT}")),
        Err(e) => Err(unmet(format!(
            "`tarnd --site` does not listen at port {NODE_PORT} of this host: {e}"
        ))),
    };
    vec![
        found("munge", munge()),
        found("kernel", kernel()),
        found("tarnd --site", daemon),
        found("plug-in", options()),
    ]
}

/// Checks that the kernel has openat2 (Linux 5.6), with which workers and the plug-in open files.
fn kernel() -> CliResult<String> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    let opened = openat2(
        CWD,
        "/",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    );
    match opened {
        Ok(_) => Ok("it has openat2".into()),
        Err(e) => Err(unmet(format!(
            "openat2 fails ({e}): tarn needs Linux 5.10 or later"
        ))),
    }
}

/// A credential is made here and taken here.
pub(super) fn munge() -> CliResult<String> {
    let not_started = |e: std::io::Error| {
        unmet(format!(
            "munge cannot be started: {e}; install it on all hosts"
        ))
    };
    let made = Command::new("munge")
        .arg("-n")
        .stdin(Stdio::null())
        .output();
    let made = made.map_err(not_started)?;
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr);
        return Err(unmet(format!("{}: is munged running?", why.trim())));
    }
    let mut reader = Command::new("unmunge")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    if let Some(mut to) = reader.stdin.take() {
        // If it has ended, its status says why.
        let _ = std::io::Write::write_all(&mut to, &made.stdout);
    }
    let read = reader.wait_with_output().map_err(not_started)?;
    if read.status.success() {
        return Ok("credentials are made and taken".into());
    }
    let why = String::from_utf8_lossy(&read.stderr);
    Err(unmet(why.trim().to_owned()))
}

/// The jobs that have `#TARN` lines and are not over.
pub(super) fn jobs_with_data() -> CliResult<Vec<String>> {
    let format = "jobid:20,burstbuffer:20";
    let listed = run_command("squeue", &["-h", "-t", ALIVE, "-O", format])?;
    let lines = listed.lines().map(|line| line.split_whitespace());
    let with = lines.filter_map(|mut words| {
        let job = words.next()?;
        words
            .next()
            .filter(|word| word.starts_with('#') || word.contains("TARN"))?;
        Some(job.to_owned())
    });
    Ok(with.collect())
}
