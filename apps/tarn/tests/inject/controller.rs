//! A site's controller as `tarn` sees it: it answers each question, and does nothing.

use crate::common::Site;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tarn_proto::site::{
    ControllerReply, ControllerRequest, DatasetInfo, JobInfo, NodeInfo, Owner, PlacementAdvice,
    Stage, UsageInfo, decode, encode,
};
use tarn_types::energy::Draw;

const OWNER: Owner = Owner::User(0);

pub(crate) struct Controller {
    socket: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    pub(crate) fn start(site: &Site) -> Self {
        let socket = site.path("controller");
        let listener = UnixListener::bind(&socket).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            while let Ok((peer, _)) = listener.accept() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                answer(peer);
            }
        });
        let thread = Some(thread);
        Self {
            socket,
            is_over,
            thread,
        }
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
fn answer(mut peer: UnixStream) -> Option<()> {
    let mut length = [0; 4];
    peer.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    peer.read_exact(&mut body).ok()?;
    let frame = encode(&reply_to(&decode(&body).ok()?)).unwrap();
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
        _ => ControllerReply::Done,
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
    let tools = ["sbatch", "scontrol", "squeue", "scancel", "sinfo"];
    let played = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inject/slurm-tools");
    crate::programs::install(site, &played, &tools);
    std::fs::create_dir_all(site.path("slurm/jobs")).unwrap();
}
