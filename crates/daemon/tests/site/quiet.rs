//! What nobody disturbs: a second node on the same machine, asked for the same at the same time as the one that is attacked. However
//! slow the machine is, both feel it; what remains is what the attack costs.

use crate::hostile::{beat, next, send};
use crate::munged::Daemon;
use crate::node::*;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use tarn_proto::site::{Job, Worked};

/// What another user's order may take longer than without the attack.
const ALLOWED: Duration = Duration::from_secs(2);
/// Rounds before the attack. They tell how far two nodes differ that nobody attacks.
const ROUNDS: usize = 3;
/// An attack is tried so often until nobody is late: an effect of it is there each time, the machine's hiccups are not.
const ATTEMPTS: u32 = 3;

/// Another user was held up: by how much.
pub(crate) struct Late(String);

/// Tries an attack until nobody else is late for it.
pub(crate) fn attempted(attack: fn(&Daemon) -> Result<(), Late>) {
    let Some(daemon) = munge() else { return };
    let mut late = Vec::new();
    for _ in 0..ATTEMPTS {
        match attack(&daemon) {
            Ok(()) => return,
            Err(Late(how)) => late.push(how),
        }
    }
    panic!("an attack holds up another user: {late:?}");
}

/// The node that nobody attacks.
pub(crate) struct Quiet<'a> {
    node: Node,
    daemon: &'a Daemon,
    /// The most by which the two have differed before the attack.
    noise: Duration,
    /// Jobs of Bob's so far.
    job: Job,
}

impl<'a> Quiet<'a> {
    /// Beside the node of this session, before that is attacked.
    pub(crate) fn beside(session: &mut Session, daemon: &'a Daemon) -> Self {
        let mut quiet = Self {
            node: Node::start("n2", daemon),
            daemon,
            noise: Duration::ZERO,
            job: 1000,
        };
        // Workers of Bob's begin with his first order.
        let mut own = quiet.node.begin(daemon);
        for session in [&mut *session, &mut own] {
            served(session, 1000, |_, _| {});
        }
        drop(own);
        for _ in 0..ROUNDS {
            let (attacked, alone) = quiet.round(session, |_, _| {});
            quiet.noise = quiet.noise.max(attacked.abs_diff(alone));
        }
        quiet
    }

    /// Bob's job is served as if nobody else was there.
    pub(crate) fn bob_is_served(&mut self, session: &mut Session) -> Result<(), Late> {
        self.bob_is_served_among(session, |_, _| {})
    }

    /// The same while orders of others end.
    pub(crate) fn bob_is_served_among(
        &mut self,
        session: &mut Session,
        other: impl FnMut(u64, Worked),
    ) -> Result<(), Late> {
        let (attacked, quiet) = self.round(session, other);
        self.judge(attacked, quiet)
    }

    /// A session with the attacked node begins as fast as with this one.
    pub(crate) fn begins(&mut self, node: &Node) -> Result<Session, Late> {
        let (own, daemon) = (&self.node, self.daemon);
        let timed = |node: &Node| {
            let began = Instant::now();
            let session = node.begin(daemon);
            (session, began.elapsed())
        };
        let ((session, attacked), (_, quiet)) = std::thread::scope(|scope| {
            let alone = scope.spawn(|| timed(own));
            (timed(node), alone.join().unwrap())
        });
        self.judge(attacked, quiet).map(|()| session)
    }

    /// How long the same order of Bob's takes on both, at the same time.
    fn round(
        &mut self,
        session: &mut Session,
        other: impl FnMut(u64, Worked),
    ) -> (Duration, Duration) {
        self.job += 1;
        let job = self.job;
        let mut own = self.node.begin(self.daemon);
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| served(&mut own, job, |_, _| {}));
            (served(session, job, other), alone.join().unwrap())
        })
    }

    fn judge(&self, attacked: Duration, quiet: Duration) -> Result<(), Late> {
        let noise = self.noise;
        let how = format!("attacked {attacked:?}, undisturbed {quiet:?}, noise {noise:?}");
        println!("{how}");
        if attacked <= quiet + ALLOWED + noise {
            return Ok(());
        }
        Err(Late(how))
    }
}

/// What an order of Bob's takes; what is heard of others meanwhile goes to `other`.
fn served(session: &mut Session, job: Job, mut other: impl FnMut(u64, Worked)) -> Duration {
    beat(session);
    let began = Instant::now();
    let wanted = send(session, BOB, prepare(job, "x"));
    loop {
        match next(session) {
            (number, what) if number == wanted => {
                assert_eq!(what, Worked::Done);
                return began.elapsed();
            }
            (number, what) => other(number, what),
        }
    }
}

#[test]
fn the_measure_sees_who_is_held_up() {
    let Some(daemon) = munge() else { return };
    let node = Node::start("n1", &daemon);
    let mut session = node.begin(&daemon);
    let mut quiet = Quiet::beside(&mut session, &daemon);
    let tarnd = Pid::from_raw(node.tarnd.id() as i32).unwrap();
    let held = ALLOWED + quiet.noise + Duration::from_secs(4);
    kill_process(tarnd, Signal::STOP).unwrap();
    let resumes = std::thread::spawn(move || {
        std::thread::sleep(held);
        kill_process(tarnd, Signal::CONT).unwrap();
    });
    let seen = quiet.bob_is_served(&mut session);
    resumes.join().unwrap();
    assert!(seen.is_err());
}
