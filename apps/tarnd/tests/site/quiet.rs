//! The undisturbed side: a second node on the same machine, with the same requests at the same time as the one that is attacked.
//! However slow the machine is, both feel it; the difference is the cost of the attack.

use crate::hostile::{next, send};
use crate::munged::Daemon;
use crate::node::*;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use tarn_proto::site::{SlurmJobId, WorkResult};

/// The time by which another user's order may exceed that without the attack.
const ALLOWED: Duration = Duration::from_secs(2);
/// Rounds before the attack. They show how far two nodes differ that nobody attacks.
const ROUNDS: usize = 3;
/// The most of that which is allowed on top. On a machine on which two undisturbed nodes differ by more, some attempts miss by chance.
const MOST_NOISE: Duration = Duration::from_secs(1);
/// So often the rounds are repeated until the noise is not more.
const CALIBRATIONS: usize = 5;
/// So often an attack is tried at most. The median attempt decides: an effect of the attack is there each time, the machine's hiccups are
/// not. It is decided earlier as soon as one side leads by so many.
const ATTEMPTS: i32 = 9;
const SERVED_AHEAD: i32 = 2;
const MISSED_AHEAD: i32 = 4;

/// Why an attempt does not show that nobody is held up.
#[derive(Debug)]
pub(crate) enum Miss {
    /// Another user was held up: by how much.
    Late(String),
    /// All of the machine has become slower since the attack began: by it, or by others.
    Slower(String),
}

/// Tries an attack until it is shown that no other user is late for it, or that one is.
pub(crate) fn attempted(attack: fn(&Daemon) -> Result<(), Miss>) {
    let Some(daemon) = munge() else { return };
    let (mut ahead, mut misses) = (0, Vec::new());
    for _ in 0..ATTEMPTS {
        match attack(&daemon) {
            Ok(()) => ahead += 1,
            Err(miss) => {
                ahead -= 1;
                misses.push(match miss {
                    Miss::Late(how) => format!("late: {how}"),
                    Miss::Slower(how) => format!("all slower: {how}"),
                });
            }
        }
        if ahead >= SERVED_AHEAD || ahead <= -MISSED_AHEAD {
            break;
        }
    }
    assert!(
        ahead > 0,
        "an attack holds up another user in most attempts: {misses:?}"
    );
}

/// The node that nobody attacks.
pub(crate) struct Quiet<'a> {
    node: Node,
    daemon: &'a Daemon,
    /// The most by which the two have differed before the attack, as far as that is allowed for.
    noise: Duration,
    /// The most that Bob's order took before the attack, on either.
    before: Duration,
    /// Jobs of Bob's so far.
    job: SlurmJobId,
}

impl<'a> Quiet<'a> {
    /// Beside the node of this session, before that is attacked.
    pub(crate) fn beside(session: &mut Session, daemon: &'a Daemon) -> Self {
        let mut quiet = Self {
            node: Node::start("n2", daemon),
            daemon,
            noise: Duration::ZERO,
            before: Duration::ZERO,
            job: 1000,
        };
        // Workers of Bob's begin with his first order.
        let mut own = quiet.node.begin(daemon);
        for session in [&mut *session, &mut own] {
            served(session, Instant::now(), 1000, |_, _| {});
        }
        drop(own);
        for _ in 0..CALIBRATIONS {
            (quiet.noise, quiet.before) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..ROUNDS {
                let (attacked, alone) = quiet.round(session, |_, _| {});
                quiet.noise = quiet.noise.max(attacked.abs_diff(alone));
                quiet.before = quiet.before.max(attacked).max(alone);
            }
            if quiet.noise <= MOST_NOISE {
                break;
            }
        }
        quiet.noise = quiet.noise.min(MOST_NOISE);
        quiet
    }

    /// Bob's job is served as if nobody else was there.
    pub(crate) fn bob_is_served(&mut self, session: &mut Session) -> Result<(), Miss> {
        self.bob_is_served_among(session, |_, _| {})
    }

    /// The same while orders of others end.
    pub(crate) fn bob_is_served_among(
        &mut self,
        session: &mut Session,
        other: impl FnMut(u64, WorkResult),
    ) -> Result<(), Miss> {
        let (attacked, quiet) = self.round(session, other);
        self.judge(attacked, quiet)
    }

    /// A session with the attacked node begins as fast as with this one.
    pub(crate) fn begins(&mut self, node: &Node) -> Result<Session, Miss> {
        let (own, daemon) = (&self.node, self.daemon);
        let began = Instant::now();
        let timed = |node: &Node| {
            let session = node.begin(daemon);
            (session, began.elapsed())
        };
        let ((session, attacked), (_, quiet)) = std::thread::scope(|scope| {
            let alone = scope.spawn(|| timed(own));
            (timed(node), alone.join().unwrap())
        });
        self.compare(attacked, quiet).map(|_| session)
    }

    /// How long the same order of Bob's takes on both, at the same time.
    fn round(
        &mut self,
        session: &mut Session,
        other: impl FnMut(u64, WorkResult),
    ) -> (Duration, Duration) {
        let mut own = self.node.begin(self.daemon);
        self.round_with(&mut own, session, other, |_| {})
    }

    /// The same with a session of the undisturbed node, and an action when that has served its order.
    fn round_with(
        &mut self,
        own: &mut Session,
        session: &mut Session,
        other: impl FnMut(u64, WorkResult),
        is_served: impl FnOnce(Instant) + Send,
    ) -> (Duration, Duration) {
        self.job += 1;
        let (job, began) = (self.job, Instant::now());
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| {
                let took = served(own, began, job, |_, _| {});
                is_served(began + took);
                took
            });
            let attacked = served(session, began, job, other);
            (attacked, alone.join().unwrap())
        })
    }

    /// Bob was not later than on the undisturbed node, nor than before the attack.
    fn judge(&self, attacked: Duration, quiet: Duration) -> Result<(), Miss> {
        let how = self.compare(attacked, quiet)?;
        match attacked <= self.before + ALLOWED + self.noise {
            true => Ok(()),
            false => Err(Miss::Slower(how)),
        }
    }

    fn compare(&self, attacked: Duration, quiet: Duration) -> Result<String, Miss> {
        let Self { noise, before, .. } = self;
        let how = format!(
            "attacked {attacked:?}, undisturbed {quiet:?}, before {before:?}, noise {noise:?}"
        );
        println!("{how}");
        match attacked <= quiet + ALLOWED + *noise {
            true => Ok(how),
            false => Err(Miss::Late(how)),
        }
    }
}

/// The time that an order of Bob's takes; results of other orders meanwhile go to `other`.
fn served(
    session: &mut Session,
    began: Instant,
    job: SlurmJobId,
    mut other: impl FnMut(u64, WorkResult),
) -> Duration {
    let wanted = send(session, BOB, prepare(job, "x"));
    loop {
        match next(session) {
            (number, what) if number == wanted => {
                assert_eq!(what, WorkResult::Done);
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
    let mut own = quiet.node.begin(&daemon);
    let tarnd = Pid::from_raw(node.tarnd.id() as i32).unwrap();
    let held = ALLOWED + quiet.noise + Duration::from_secs(1);
    kill_process(tarnd, Signal::STOP).unwrap();
    let resume = |is_served: Instant| {
        std::thread::sleep((is_served + held).saturating_duration_since(Instant::now()));
        kill_process(tarnd, Signal::CONT).unwrap();
    };
    let (attacked, alone) = quiet.round_with(&mut own, &mut session, |_, _| {}, resume);
    let seen = quiet.judge(attacked, alone);
    assert!(matches!(seen, Err(Miss::Late(_))), "{seen:?}");
    // A delay of the whole machine is not told apart from the machine, but seen.
    let slow = quiet.before + held;
    let seen = quiet.judge(slow, slow);
    assert!(matches!(seen, Err(Miss::Slower(_))), "{seen:?}");
}
