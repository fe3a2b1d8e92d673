//! `tarn slurm install`: tarn's part of Slurm's configuration, written, verified and taken out. docs/admin/site.md, "Configuration".

use super::health;
use crate::error::{CliError, CliResult, ExitWith};
use crate::finding::{self, finding, found};
use crate::globals::Globals;
use crate::print::{message, out};
use crate::whole;
use anyhow::Context;
use clap::Args;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tarn_slurm::conf;
use tarn_types::codes::Exit;

const BURST_BUFFER: &str = include_str!("../../../../plugins/slurm/burst_buffer.lua");
const JOB_SUBMIT: &str = include_str!("../../../../plugins/slurm/job_submit.lua");
/// Bytes of a configuration file; longer ones are none.
const MAX_CONF: u64 = 64 << 20;
/// How deep files may include others.
const MAX_DEPTH: usize = 8;
/// The file beside the plug-ins that is there while tarn is switched off; it holds the reason.
const OFF: &str = "tarn.off";
/// Bytes of a reason.
const MAX_REASON: usize = 400;
/// The folder of slurm.conf unless `$SLURM_CONF` has another.
const CONF: &str = "/etc/slurm";

#[derive(Debug, Clone, Args)]
pub(crate) struct InstallArgs {
    /// Write nothing: check the written configuration, and Slurm and tarn as they run
    #[arg(long, conflicts_with = "remove")]
    check: bool,
    /// Remove all of it again
    #[arg(long)]
    remove: bool,
    /// With --remove: even if jobs with data are running, or slurmctld does not answer
    #[arg(long, requires = "remove")]
    force: bool,
    /// The folder of slurm.conf [default: that of $SLURM_CONF, else /etc/slurm]
    #[arg(long, value_name = "DIR")]
    conf: Option<PathBuf>,
    /// Files are below this folder: an image of a node
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// tarn's program, as slurmctld finds it [default: this one]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The SPANK plug-in, as all hosts find it [default: ../lib/tarn/spank_tarn.so beside the program's folder]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// Memory of a node in 1LM: jobs that ask for more (--mem) get nodes with the feature of --memory-mode
    #[arg(long, value_name = "SIZE", value_parser = tarn_types::units::parse_size)]
    dram: Option<u64>,
    /// The feature of nodes in the mode that has more memory
    #[arg(long, value_name = "FEATURE", default_value = "mode_2lm")]
    memory_mode: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConfArgs {
    /// The folder of slurm.conf [default: that of $SLURM_CONF, else /etc/slurm]
    #[arg(long, value_name = "DIR")]
    conf: Option<PathBuf>,
}

/// The lines to write.
#[derive(Debug)]
enum Lines {
    /// A file of our own.
    File(String),
    /// A block in a file of the site's.
    Block(String),
}

#[derive(Debug)]
struct ConfigFileEdit {
    path: PathBuf,
    lines: Lines,
}

/// The files to write, in an order in which each step can be the last one, and the work that is left to the administrator.
struct InstallPlan {
    files: Vec<ConfigFileEdit>,
    left: Vec<String>,
}

impl InstallPlan {
    fn write(&mut self, path: PathBuf, lines: Lines) {
        self.files.push(ConfigFileEdit { path, lines });
    }
}

fn folder(given: Option<&Path>) -> PathBuf {
    let named = || {
        let conf = PathBuf::from(std::env::var_os("SLURM_CONF").filter(|v| !v.is_empty())?);
        conf.parent().map(Path::to_path_buf)
    };
    given
        .map(Path::to_path_buf)
        .or_else(named)
        .unwrap_or_else(|| CONF.into())
}

pub(crate) fn install(globals: &Globals, args: &InstallArgs) -> CliResult {
    let plan = plan(args)?;
    match (args.check, args.remove) {
        (true, _) => check(globals, args, &plan),
        (_, true) => remove(args, &plan),
        _ => write(args, &plan),
    }
}

impl InstallArgs {
    /// The path of a file below the root.
    fn below(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn program(&self) -> CliResult<PathBuf> {
        match &self.program {
            Some(path) => Ok(path.clone()),
            None => crate::cluster::own_program(),
        }
    }

    fn plugin(&self) -> CliResult<PathBuf> {
        if let Some(path) = &self.plugin {
            return Ok(path.clone());
        }
        let program = self.program()?;
        let prefix = program.parent().and_then(Path::parent);
        Ok(prefix
            .unwrap_or(Path::new("/usr"))
            .join("lib/tarn/spank_tarn.so"))
    }
}

fn usage(text: String) -> CliError {
    CliError::new(Exit::Usage, text)
}

/// A path as Lua and Slurm's files take it: they have their own signs, and words that end at white space.
fn plain(path: &Path) -> CliResult<&str> {
    let text = path
        .to_str()
        .filter(|text| path.is_absolute() && text.len() < 1024);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    text.filter(|text| text.chars().all(is_plain)).ok_or_else(|| {
        usage(format!(
            "{} cannot stand in Slurm's files: name an absolute path of letters, digits and / . _ - + @",
            path.display()
        ))
    })
}

fn plan(args: &InstallArgs) -> CliResult<InstallPlan> {
    let etc = folder(args.conf.as_deref());
    let at = |name: &str| args.below(&etc.join(name));
    let program = args.program()?;
    let plugin = args.plugin()?;
    let (program, plugin) = (plain(&program)?, plain(&plugin)?);
    let is_feature = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if args.memory_mode.is_empty() || !args.memory_mode.chars().all(is_feature) {
        return Err(usage("a feature is letters, digits and _".into()));
    }
    plain(&etc)?;
    let site_conf = read_site_conf(&at("slurm.conf"), 0)?;
    let mut plan = InstallPlan {
        files: Vec::new(),
        left: Vec::new(),
    };
    let mut slurm = burst_buffer_line(&site_conf, &at("slurm.conf"))?.to_owned();
    let stages = fill_script(BURST_BUFFER, args, &etc, program);
    plan.write(at("burst_buffer.lua"), Lines::File(stages));
    let buffers = format!(
        "# {}\nDirective=TARN\nStageInTimeout=86400\nStageOutTimeout=86400\nOtherTimeout=300\n",
        conf::BEGIN
    );
    plan.write(at("burst_buffer.conf"), Lines::File(buffers));
    let submit = at("job_submit.lua");
    let is_theirs = read(&submit)?.is_some_and(|text| !is_ours(&text));
    match conf::value(&site_conf, "JobSubmitPlugins") {
        _ if is_theirs => plan.left.push(format!(
            "{} is the site's own: --workflow-start and so on are not there, nor what --dram is for; to have them, call tarn's from it (docs/admin/site.md, \"Beside a job_submit.lua of the site's own\")",
            submit.display()
        )),
        Some(plugins) if !plugins.split(',').any(|p| p.trim() == "lua") => plan.left.push(format!(
            "JobSubmitPlugins={plugins} is the site's own: add `,lua` to it to have --workflow-start and so on"
        )),
        other => {
            let options = fill_script(JOB_SUBMIT, args, &etc, program);
            plan.write(submit, Lines::File(options));
            if other.is_none() {
                slurm += "JobSubmitPlugins=lua\n";
            }
        }
    }
    let stack = format!("required {plugin}\n");
    plan.write(at("plugstack.conf"), Lines::Block(stack));
    // It makes all others count, and so comes last.
    plan.write(at("slurm.conf"), Lines::Block(slurm));
    Ok(plan)
}

/// The line for the stages that slurm.conf at `path`, with the text `site_conf`, lacks.
fn burst_buffer_line(site_conf: &str, path: &Path) -> CliResult<&'static str> {
    match conf::value(site_conf, "BurstBufferType") {
        None => Ok("BurstBufferType=burst_buffer/lua\n"),
        Some("burst_buffer/lua") => Ok(""),
        Some(other) => Err(CliError::new(
            Exit::State,
            format!(
                "{} has BurstBufferType={other}: Slurm has one such plug-in, and tarn's is burst_buffer/lua; take that line out first",
                path.display()
            ),
        )),
    }
}

/// A script of tarn's, with the places and the memory of this site.
fn fill_script(script: &str, args: &InstallArgs, etc: &Path, program: &str) -> String {
    let text = script.replace("or \"tarn\"", &format!("or \"{program}\""));
    let text = text.replace(
        "local conf = \"/etc/slurm\"",
        &format!("local conf = \"{}\"", etc.display()),
    );
    let memory = args.dram.map(|dram| {
        let mib = dram >> 20;
        format!("local dram, larger = {mib}, \"{}\"", args.memory_mode)
    });
    let text = match memory {
        Some(memory) => text.replace("local dram, larger = nil, nil", &memory),
        None => text,
    };
    format!("-- {}\n{text}", conf::BEGIN)
}

/// The text of slurm.conf and of the files that it includes, without our block. As in Slurm, paths are relative to the folder of
/// the first.
fn read_site_conf(path: &Path, depth: usize) -> CliResult<String> {
    let Some(text) = read(path)? else {
        return match depth {
            0 => Err(CliError::new(
                Exit::NotFound,
                format!(
                    "{} is not there: run this on the host of slurmctld, and give the folder of slurm.conf if it is another (--conf DIR)",
                    path.display()
                ),
            )),
            _ => Ok(String::new()),
        };
    };
    let mut all = conf::without(&text)
        .with_context(|| path.display().to_string())
        .exit(Exit::State)?;
    if depth < MAX_DEPTH {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let more: Vec<PathBuf> = conf::includes(&all).map(|file| folder.join(file)).collect();
        for file in more {
            all += "\n";
            all += &read_site_conf(&file, depth + 1)?;
        }
    }
    Ok(all)
}

/// The text of a file, if it is there.
fn read(path: &Path) -> CliResult<Option<String>> {
    let failed = |why: String| {
        CliError::new(
            Exit::State,
            format!("{} cannot be read: {why}", path.display()),
        )
    };
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e.to_string())),
        Ok(about) if about.len() > MAX_CONF => return Err(failed("it is too long".into())),
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    Ok(Some(text))
}

fn is_ours(text: &str) -> bool {
    text.lines()
        .next()
        .is_some_and(|line| line.ends_with(conf::BEGIN))
}

impl ConfigFileEdit {
    /// The text of the file now, and the text that it should have.
    fn texts(&self) -> CliResult<(Option<String>, String)> {
        let old = read(&self.path)?;
        let new = match &self.lines {
            Lines::File(text) => {
                if old.as_deref().is_some_and(|old| !is_ours(old)) {
                    return Err(CliError::new(
                        Exit::State,
                        format!(
                            "{} is there and not tarn's: move it away, or add what tarn's does to it by hand (docs/admin/site.md, \"Configuration\")",
                            self.path.display()
                        ),
                    ));
                }
                text.clone()
            }
            Lines::Block(lines) => conf::with(old.as_deref().unwrap_or(""), lines)
                .with_context(|| self.path.display().to_string())
                .exit(Exit::State)?,
        };
        Ok((old, new))
    }
}

fn write(args: &InstallArgs, plan: &InstallPlan) -> CliResult {
    let plugin = args.below(&args.plugin()?);
    if !plugin.exists() {
        return Err(CliError::new(
            Exit::NotFound,
            format!(
                "the SPANK plug-in {} is not there, and nothing that Slurm starts would run: it is made where Slurm's headers are (Debian: libslurm-dev) by `make build` or `scripts/spank.sh FOLDER`; give its place as --plugin PATH",
                plugin.display()
            ),
        ));
    }
    let texts: Vec<(Option<String>, String)> = plan
        .files
        .iter()
        .map(ConfigFileEdit::texts)
        .collect::<CliResult<_>>()?;
    for (file, (old, new)) in plan.files.iter().zip(&texts) {
        let is_new = old.as_ref() != Some(new);
        if is_new {
            replace(&file.path, new)?;
        }
        let state = if is_new { "written" } else { "as it should be" };
        out!("{} {state}", file.path.display())?;
    }
    for left in &plan.left {
        message!("left to you: {left}");
    }
    out!(
        "next: the same on every host that has its own files; restart slurmctld; then `tarn slurm install --check`"
    )?;
    Ok(Exit::Success)
}

/// Replaces a file as a whole, with the rights that it had; replaces a link's target, not the link.
fn replace(path: &Path, text: &str) -> CliResult<()> {
    whole::replace(path, text.as_bytes(), Some(0o644))
        .with_context(|| format!("{} cannot be written", path.display()))
        .exit(Exit::State)
}

/// Takes a file away that may be gone already.
fn take_away(path: &Path) -> CliResult<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e)
            .with_context(|| path.display().to_string())
            .exit(Exit::State),
        _ => Ok(()),
    }
}

fn remove(args: &InstallArgs, plan: &InstallPlan) -> CliResult {
    if !args.force && args.root == Path::new("/") {
        let jobs = health::jobs_with_data().map_err(|why| {
            CliError::new(
                Exit::State,
                format!("whether jobs with data are under way is not known: {why}; --force removes anyway"),
            )
        })?;
        if !jobs.is_empty() {
            let first: Vec<&str> = jobs.iter().take(10).map(String::as_str).collect();
            return Err(CliError::new(
                Exit::Busy,
                format!(
                    "{} jobs have data on nodes or wait for it ({}): run `tarn slurm off`, wait until they have ended, and remove then; --force leaves them without their data",
                    jobs.len(),
                    first.join(", ")
                ),
            ));
        }
    }
    for file in plan.files.iter().rev() {
        let Some(old) = read(&file.path)? else {
            continue;
        };
        match &file.lines {
            Lines::File(_) if is_ours(&old) => take_away(&file.path)?,
            Lines::File(_) => continue,
            Lines::Block(_) => {
                let new = conf::without(&old)
                    .with_context(|| file.path.display().to_string())
                    .exit(Exit::State)?;
                if new == old {
                    continue;
                }
                replace(&file.path, &new)?;
            }
        }
        out!("{} taken out", file.path.display())?;
    }
    // Left there, it would switch off what is installed later.
    take_away(&args.below(&folder(args.conf.as_deref()).join(OFF)))?;
    out!(
        "next: restart slurmctld; stop `tarnd --controller` and `tarnd --site`; data on nodes stays until it is removed"
    )?;
    Ok(Exit::Success)
}

fn check(globals: &Globals, args: &InstallArgs, plan: &InstallPlan) -> CliResult {
    let mut findings = Vec::new();
    for file in &plan.files {
        let name = file.path.display().to_string();
        findings.push(match file.texts() {
            Ok((old, new)) if old.as_deref() == Some(&new) => finding("file", true, name),
            Ok((None, _)) => finding("file", false, format!("{name} is not there: `tarn slurm install` writes it")),
            Ok(_) => finding(
                "file",
                false,
                format!("{name} is not what this version of tarn writes: `tarn slurm install` with the options of the first time does"),
            ),
            Err(e) => finding("file", false, e.to_string()),
        });
    }
    for path in [args.plugin()?, args.program()?].map(|path| args.below(&path)) {
        findings.push(if path.exists() {
            finding("file", true, path.display().to_string())
        } else {
            finding("file", false, format!("{} is not there", path.display()))
        });
    }
    if args.root == Path::new("/") {
        findings.extend(health::of_slurm());
        findings.push(found("munge", health::munge()));
        findings.extend(health::of_controller());
        findings.push(match off_reason(&folder(args.conf.as_deref())) {
            None => finding("on", true, "jobs with `#TARN` lines are taken"),
            Some(why) => {
                let text = format!("switched off: {why}; `tarn slurm on` ends it");
                finding("on", false, text)
            }
        });
    }
    finding::show(globals, &findings)?;
    for left in &plan.left {
        message!("left to you: {left}");
    }
    if findings.iter().all(|f| f.there) {
        Ok(Exit::Success)
    } else {
        Err(CliError::new(
            Exit::State,
            "not all is as it should be: see the lines with `no`",
        ))
    }
}

/// Why tarn is switched off, if it is.
pub(super) fn off_reason(conf: &Path) -> Option<String> {
    let text = fs::read_to_string(conf.join(OFF)).ok()?;
    let reason: String = text.trim().chars().take(MAX_REASON).collect();
    let reason = if reason.is_empty() {
        "no reason is given".to_owned()
    } else {
        reason
    };
    Some(reason)
}

/// New jobs with directives are refused; all others, and those that are there, continue.
pub(crate) fn off(args: &ConfArgs, reason: &[String]) -> CliResult {
    let path = folder(args.conf.as_deref()).join(OFF);
    let reason = reason.join(" ");
    if reason.len() > MAX_REASON || reason.contains(char::is_control) {
        return Err(usage(format!(
            "a reason is one line of at most {MAX_REASON} bytes"
        )));
    }
    replace(&path, &format!("{reason}\n"))?;
    out!(
        "off: sbatch refuses scripts with `#TARN` lines on this cluster; jobs that are there continue; `tarn slurm on` ends it"
    )?;
    Ok(Exit::Success)
}

pub(crate) fn on(args: &ConfArgs) -> CliResult {
    let path = folder(args.conf.as_deref()).join(OFF);
    take_away(&path)?;
    out!("on")?;
    Ok(Exit::Success)
}

/// Refuses a job with directives in sbatch while tarn is switched off.
pub(super) fn refused_while_off(args: &ConfArgs) -> CliResult<()> {
    match off_reason(&folder(args.conf.as_deref())) {
        Some(why) => Err(CliError::new(
            Exit::State,
            format!(
                "this cluster takes no jobs with `#TARN` lines at the moment: {why}; jobs without them run as ever"
            ),
        )),
        None => Ok(()),
    }
}
