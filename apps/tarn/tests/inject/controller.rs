//! A site's controller as `tarn` sees it: it answers each question, and does nothing.

use crate::common::Site;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, DatasetInfo, JobInfo, NodeInfo, Owner, PlacementAdvice,
    PlanInfo, PlanStatusInfo, PlannedJobInfo, Stage, UsageInfo, WorkflowUsageInfo, decode, encode,
};
use tarn_types::energy::Draw;

const OWNER: Owner = Owner::User(0);

/// The stages of jobs that it was asked for, as text.
type Stages = Arc<Mutex<Vec<String>>>;

pub(crate) struct Controller {
    socket: PathBuf,
    is_over: Arc<AtomicBool>,
    stages: Stages,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    pub(crate) fn start(site: &Site) -> Self {
        let socket = site.path("controller");
        let listener = UnixListener::bind(&socket).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let stages = Stages::default();
        let reached = stages.clone();
        let thread = std::thread::spawn(move || {
            while let Ok((peer, _)) = listener.accept() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                answer(peer, &reached);
            }
        });
        let thread = Some(thread);
        Self {
            socket,
            is_over,
            stages,
            thread,
        }
    }

    /// The stages of jobs that it was asked for.
    pub(crate) fn stages(&self) -> Vec<String> {
        self.stages.lock().unwrap().clone()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if UnixStream::connect(&self.socket).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// `None` if the client has gone.
fn answer(mut peer: UnixStream, stages: &Stages) -> Option<()> {
    let mut length = [0; 4];
    peer.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    peer.read_exact(&mut body).ok()?;
    let ask = decode(&body).ok()?;
    if let ControllerRequest::Stage(staging) = &ask {
        stages.lock().unwrap().push(format!("{:?}", staging.stage));
    }
    let frame = encode(&reply_to(&ask)).unwrap();
    peer.write_all(&frame).ok()
}

fn reply_to(ask: &ControllerRequest) -> ControllerReply {
    match ask {
        ControllerRequest::Stage(staging) if matches!(staging.stage, Stage::Setup(_)) => {
            ControllerReply::Advice(PlacementAdvice::default())
        }
        ControllerRequest::Datasets | ControllerRequest::Find(_) => {
            ControllerReply::Datasets(vec![DatasetInfo {
                owner: OWNER,
                workflow: "w".into(),
                dataset: "kept".into(),
                version: 1,
                bytes: 5,
                nodes: vec!["n1".into()],
                stores: Default::default(),
                awaits: None,
                until: None,
                ends_soon: false,
                failed: None,
                readers: vec![OWNER],
                jobs: vec![1],
            }])
        }
        ControllerRequest::Job(_) => ControllerReply::Job(Box::new(JobInfo {
            user: 0,
            phase: "running".into(),
            history: vec![(0, "set up".into())],
            waits: None,
            ending: Vec::new(),
            planned: None,
        })),
        ControllerRequest::Nodes => ControllerReply::Nodes(vec![NodeInfo {
            name: "n1".into(),
            up: true,
            capacity: 1 << 30,
            taken: 0,
            persistent: false,
            orphans: 0,
            draw: Draw::default(),
            stores: Vec::new(),
        }]),
        ControllerRequest::Usage(_) => ControllerReply::Usage(vec![UsageInfo {
            owner: OWNER,
            node_seconds: 3600,
            mib_seconds: 1,
            read_outside: 0,
            written_outside: 0,
            between_nodes: 0,
        }]),
        ControllerRequest::WorkflowUsage(_) => {
            ControllerReply::WorkflowUsage(vec![WorkflowUsageInfo {
                user: 0,
                workflow: "w".into(),
                begun: 1,
                is_over: true,
                done: 1,
                not_done: 0,
                open: 0,
                unaccounted: 0,
                time: 1,
                queue: 0,
                run: 1,
                node_time: 1,
            }])
        }
        ControllerRequest::Records { .. } => ControllerReply::Records {
            records: Vec::new(),
            next: None,
        },
        ControllerRequest::DataJobs => ControllerReply::DataJobs {
            known_since: 0,
            jobs: vec![1],
        },
        ControllerRequest::Plan => ControllerReply::Plan(Box::new(PlanInfo {
            status: plan_status(),
            until: 3,
            nodes: vec!["n1".into()],
            jobs: vec![PlannedJobInfo {
                job: 1,
                user: Some(0),
                workflow: Some("w".into()),
                nodes: vec![0],
                has_begun: false,
                begin: 2,
                end: 3,
                why: "its turn".into(),
            }],
            unplanned: Vec::new(),
            others_unplanned: 0,
            left_out: 0,
        })),
        ControllerRequest::PlanStatus => ControllerReply::PlanStatus(Box::new(plan_status())),
        _ => ControllerReply::Done,
    }
}

fn plan_status() -> PlanStatusInfo {
    PlanStatusInfo {
        mode: "advise".into(),
        policy: "data".into(),
        made: 1,
        age: 1,
        took: 1,
        waiting: 1,
        begun: 0,
        on_planned_nodes: 0,
        median_error: None,
    }
}

/// Of a command: the controller is this site's, and Slurm is played in it.
pub(crate) fn with_slurm(site: &Site, command: &mut Command) {
    crate::programs::with_programs(site, command);
    command
        .env("TARN_CONTROLLER", site.path("controller"))
        .env("PLAYED_SLURM", site.path("slurm"));
}

/// Puts Slurm's programs into a site.
pub(crate) fn install_slurm(site: &Site) {
    let tools = ["sbatch", "scontrol", "squeue", "scancel", "sinfo", "sacct"];
    let played = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inject/slurm-tools");
    crate::programs::install(site, &played, &tools);
    std::fs::create_dir_all(site.path("slurm/jobs")).unwrap();
}

/// The day on which the jobs of [`write_accounting`] ended.
pub(crate) const ENDED: &str = "2026-01-01";

/// Gives Slurm an accounting: two jobs of the caller's on a node, one after the other.
pub(crate) fn write_accounting(site: &Site) {
    let user = rustix::process::getuid().as_raw();
    let job = |number: u32, begin: u64| {
        let end = begin + 60;
        format!(
            "{number}|{user}|all|normal|COMPLETED|1767290000|1767290000|{begin}|{end}|2|1|n1|8|8|cpu=8,node=1|cpu=8,node=1||{number}\n"
        )
    };
    let text = job(1, 1_767_290_000) + &job(2, 1_767_290_060);
    site.write("slurm/sacct", &text);
}
