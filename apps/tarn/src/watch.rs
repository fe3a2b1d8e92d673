//! `tarn status`, once or until the run ends: from its log and its status file, which any node with the state folder
//! can read.

use crate::error::{CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::StatusArgs;
use crate::print::{self, out};
use crate::state;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tarn_journal::live::LiveReader;
use tarn_journal::{LogFollower, RunLock, runs};
use tarn_report::{LiveStatus, OutcomeName, RunStatus};
use tarn_types::codes::Exit;
use tarn_types::event::Start;
use tarn_types::layout::StateDir;
use tarn_types::units::{SECOND, Time};

/// How often a watched run is looked at.
const REFRESH: Duration = Duration::from_secs(1);
/// Lines of a table in a picture, as many as there is space for all: the most, and the least.
const TABLE_LINES: (usize, usize) = (20, 2);

pub(crate) fn status(globals: &Globals, args: &StatusArgs) -> CliResult {
    let mut look = WatchedRun::open(globals, args)?;
    let mut screen = Screen::default();
    let draws = !globals.json && std::io::stdout().is_terminal();
    loop {
        let status = look.again()?;
        let over = !args.watch || status.alive == Some(false);
        if globals.json {
            print::json(&status)?;
        } else if over {
            screen.clear()?;
            print::text(&status.to_string())?;
            if status.alive == Some(false) && status.outcome == OutcomeName::Unfinished {
                out!("its process is gone; `tarn resume` continues from here")?;
            }
        } else if draws {
            screen.draw(&status)?;
        } else {
            out!("{}", status.line())?;
        }
        if over || print::nobody_reads() {
            return Ok(Exit::Success);
        }
        std::thread::sleep(REFRESH);
    }
}

/// A run that is looked at.
struct WatchedRun {
    dir: StateDir,
    run: String,
    begun: Start,
    log: LogFollower,
    live: LiveReader,
    live_status: LiveStatus,
    /// The run's time in its last status, and when that was.
    last_status: Option<(Time, Instant)>,
}

impl WatchedRun {
    fn open(globals: &Globals, args: &StatusArgs) -> CliResult<Self> {
        let dir = state::here(globals)?;
        let run = state::which(&dir, args.which.name())?;
        Ok(Self {
            begun: state::started(&dir, &run)?,
            log: LogFollower::new(&dir.log(&run)),
            live: LiveReader::new(dir.live(&run)),
            live_status: LiveStatus::default(),
            last_status: None,
            dir,
            run,
        })
    }

    fn again(&mut self) -> CliResult<RunStatus> {
        // Before the log is read: of a run that has ended it is whole then.
        let holder =
            RunLock::holder(&self.dir.lock(&self.begun.workflow.name)).exit(Exit::State)?;
        let pid = holder.as_ref().map(|h| h.as_ref().map(|h| h.pid));
        let live = pid.and_then(|pid| self.live.look(pid, Instant::now()));
        // The lock may be that of a newer run of the workflow.
        let alive = live.is_some() || (holder.is_some() && self.is_newest()?);
        if let Some((live, since)) = &live {
            self.last_status = Some((live.now, *since));
        }
        if self.log.was_cut().exit(Exit::State)? {
            self.live_status = LiveStatus::default();
        }
        let live_status = &mut self.live_status;
        self.log
            .read(|record| live_status.apply(&record))
            .exit(Exit::State)?;
        // A run that died has stood still since its last record.
        let now = if alive { self.now() } else { 0 };
        let live = live.as_ref().map(|(live, _)| live);
        let mut status = self.live_status.status(now, live).exit(Exit::State)?;
        status.alive = Some(alive);
        Ok(status)
    }

    fn is_newest(&self) -> CliResult<bool> {
        let newest = runs::newest(&self.dir, Some(&self.begun.workflow.name)).exit(Exit::State)?;
        Ok(newest.is_some_and(|n| n.name == self.run))
    }

    /// The run's time now: from its last status, else by the clocks of its node and this one.
    fn now(&self) -> Time {
        match self.last_status {
            Some((now, since)) => {
                let more = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                now.saturating_add(more)
            }
            None => crate::clock::wall()
                .saturating_sub(self.begun.wall)
                .saturating_mul(SECOND),
        }
    }
}

/// A picture in a terminal that takes the place of the one before.
#[derive(Default)]
struct Screen {
    /// Lines that were drawn.
    lines: usize,
}

impl Screen {
    fn draw(&mut self, status: &RunStatus) -> CliResult<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let (rows, columns) = size.map_or((0, 0), |s| (s.ws_row.into(), s.ws_col.into()));
        let or = |n: usize, usual| if n == 0 { usual } else { n };
        let (rows, columns) = (or(rows, 24), or(columns, 80));
        let (most, least) = TABLE_LINES;
        let mut pictures = (least..=most).rev().map(|lines| status.text(lines));
        let text = pictures.find(|text| text.lines().count() < rows);
        let text = text.unwrap_or_else(|| status.text(least));
        // The cursor stands below the last line, and no line continues in the next.
        let cut = |line: &str| line.chars().take(columns - 1).collect();
        let mut lines: Vec<String> = print::plain(&text).lines().map(cut).collect();
        lines.truncate(rows - 1);
        print::redraw(self.lines, &lines)?;
        self.lines = lines.len();
        Ok(())
    }

    fn clear(&mut self) -> CliResult<()> {
        let lines = std::mem::take(&mut self.lines);
        match lines {
            0 => Ok(()),
            lines => print::redraw(lines, &[]),
        }
    }
}
