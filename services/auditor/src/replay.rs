//! The replay of an accounting, event by event. Times are seconds: the promise is judged in any unit.

use crate::account::{AuditAccount, ComparedQueue, Row, queue_of, ready};
use crate::clock::ClockFindings;
use crate::{AuditInput, AuditReport, Delay, MAX_NAMED, PLANNING_STEP, RESERVATION, SCHEDULING};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::site::AccountedJob;
use tarn_types::site::promise::{PromiseAccount, PromiseJudge, PromiseViolation, StartCheck};

/// The kinds of events, in the order in which events of one second are taken: nodes are free before others get them, and ordinary jobs
/// get them before those with data lines, which are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    End,
    Ready,
    OrdinaryStart,
    DataStart,
}

/// The promise in one queue.
#[derive(Debug)]
struct JudgedQueue {
    judge: PromiseJudge<Row>,
    /// When jobs with data lines got nodes, in ascending order.
    data_starts: Vec<u64>,
    /// The first job, and since when nodes have been free for it.
    free_since: Option<(Row, u64)>,
}

struct Replay<'a> {
    account: AuditAccount<'a>,
    queues: BTreeMap<ComparedQueue<'a>, JudgedQueue>,
    bound: u64,
    /// The time of the last event.
    last: u64,
    report: AuditReport,
    judged: BTreeSet<Row>,
    late: BTreeSet<Row>,
    put_off: BTreeSet<Row>,
    elsewhere: BTreeSet<Row>,
}

pub(crate) fn replay(input: &AuditInput<'_>, clock: ClockFindings) -> AuditReport {
    let mut replay = Replay {
        account: AuditAccount::new(input),
        queues: BTreeMap::new(),
        bound: input.bound,
        last: 0,
        report: AuditReport {
            replayed: input.jobs.len() as u64,
            backward_count: clock.count,
            ..AuditReport::default()
        },
        judged: BTreeSet::new(),
        late: BTreeSet::new(),
        put_off: BTreeSet::new(),
        elsewhere: BTreeSet::new(),
    };
    let events = replay.events(input.jobs, &clock);
    replay.last = events.last().map_or(0, |(time, ..)| *time);
    for (time, happening, row) in events {
        replay.account.now = time;
        match happening {
            Happening::End => replay.account.end(row),
            Happening::Ready => replay.account.wait(row),
            Happening::OrdinaryStart | Happening::DataStart => replay.start(row),
        }
        replay.update();
    }
    let mut report = replay.report;
    report.judged = replay.judged.len() as u64;
    report.late = replay.late.difference(&replay.put_off).count() as u64;
    report.not_compared.other_queue = replay.elsewhere.len() as u64;
    report.backwards = clock.backwards;
    report
}

impl<'a> Replay<'a> {
    fn events(
        &mut self,
        jobs: &'a [AccountedJob],
        clock: &ClockFindings,
    ) -> Vec<(u64, Happening, Row)> {
        let mut events = Vec::with_capacity(3 * jobs.len());
        for (row, job) in jobs.iter().enumerate() {
            let has_data = self.account.rows[row].has_data;
            self.report.data_jobs += u64::from(has_data);
            let is_bad = clock.is_bad.get(row).is_some_and(|bad| *bad);
            let begins = ready(job);
            let waits_until = job.start.or(job.end).unwrap_or(u64::MAX);
            if is_bad || clock.is_repeated(begins, waits_until) {
                self.account.set_aside(row);
                self.report.not_compared.bad_times += u64::from(!has_data);
            }
            if is_bad {
                continue;
            }
            if job.eligible.is_some() {
                events.push((begins, Happening::Ready, row));
            }
            if let Some(start) = job.start.filter(|_| !job.nodes.is_empty()) {
                let start = start.max(begins);
                let happening = if has_data {
                    Happening::DataStart
                } else {
                    Happening::OrdinaryStart
                };
                events.push((start, happening, row));
                if has_data {
                    let bound = self.bound;
                    let queue = self.queues.entry(queue_of(job));
                    let queue = queue.or_insert_with(|| JudgedQueue {
                        judge: PromiseJudge::new(bound),
                        data_starts: Vec::new(),
                        free_since: None,
                    });
                    queue.data_starts.push(start);
                }
            }
            if let Some(end) = job.end {
                // Times may be rounded: none ends before it begins.
                let after = begins.max(job.start.unwrap_or(0));
                events.push((end.max(after), Happening::End, row));
            }
        }
        for queue in self.queues.values_mut() {
            queue.data_starts.sort_unstable();
        }
        // Of a job that begins and ends within a second, the end comes first and finds nothing: it is moved behind the begin.
        let brief: BTreeSet<Row> = brief_jobs(&events);
        events.sort_unstable_by_key(|(time, happening, row)| {
            let is_behind = *happening == Happening::End && brief.contains(row);
            (*time, is_behind, *happening, *row)
        });
        events
    }

    fn start(&mut self, row: Row) {
        let queue = queue_of(self.account.rows[row].job);
        let has_data = self.account.rows[row].has_data;
        let check: Option<StartCheck<Row>> = self.queues.get(&queue).and_then(|judged| {
            let view = self.account.view(queue);
            judged.judge.before_start(&view, row)
        });
        self.account.start(row);
        if has_data {
            self.elsewhere.extend(self.account.waiting_elsewhere(row));
        }
        let Some(check) = check else {
            return;
        };
        if has_data && let Some(promise) = self.queues.get(&queue).and_then(|q| q.judge.promise()) {
            self.judged.insert(promise.job);
        }
        if let Err(violation) = check.after_start(&self.account.view(queue), row) {
            self.put_off(queue, violation);
        }
    }

    fn put_off(&mut self, queue: ComparedQueue<'a>, violation: PromiseViolation<Row>) {
        let PromiseViolation::PutOff {
            job,
            by,
            begin,
            then,
            latest,
        } = violation
        else {
            return;
        };
        let (waits, taker) = (&self.account.rows[job], &self.account.rows[by]);
        if !taker.has_data {
            let is_small = then.is_some_and(|then| then <= begin.saturating_add(PLANNING_STEP));
            if !is_small && self.account.set_aside(job) {
                self.report.not_compared.passed_over += 1;
            }
            return;
        }
        let free_since = self.queues.get(&queue).and_then(|judged| judged.free_since);
        let was_free = free_since.is_some_and(|(row, since)| {
            row == job && self.account.now.saturating_sub(since) > SCHEDULING
        });
        if was_free && !taker.job.reservation.starts_with(RESERVATION) {
            if self.account.set_aside(job) {
                self.report.not_compared.waited_for_more += 1;
            }
            return;
        }
        self.put_off.insert(job);
        let waited_until = waits.job.start.or(waits.job.end).unwrap_or(self.last);
        if waited_until <= latest {
            self.report.without_effect += 1;
            return;
        }
        self.report.delay_count += 1;
        if self.report.delays.len() < MAX_NAMED {
            self.report.delays.push(Delay {
                job: waits.job.number,
                by: taker.job.number,
                at: self.account.now,
                could_begin: begin,
                latest,
                then,
                began: waits.job.start,
            });
        }
    }

    /// After an event: the promises, where a job with data lines begins while the job with the promise waits.
    fn update(&mut self) {
        for (queue, judged) in &mut self.queues {
            let view = self.account.view(*queue);
            let kept = judged.judge.promise().map(|promise| promise.job);
            let kept = kept.filter(|job| view.is_waiting(*job));
            let first = kept.or_else(|| view.first_waiting());
            let first = first.filter(|row| {
                let job = self.account.rows[*row].job;
                let from = judged
                    .data_starts
                    .partition_point(|start| *start < ready(job));
                let start = judged.data_starts.get(from);
                start.is_some_and(|start| job.start.is_none_or(|own| *start < own))
            });
            let Some(first) = first else {
                judged.judge = PromiseJudge::new(self.bound);
                judged.free_since = None;
                continue;
            };
            if judged.judge.update(&view).is_err() {
                self.late.insert(first);
            }
            let is_free = view
                .earliest(first)
                .is_some_and(|begin| begin <= self.account.now);
            judged.free_since = match judged.free_since {
                Some((row, since)) if is_free && row == first => Some((row, since)),
                _ => is_free.then_some((first, self.account.now)),
            };
        }
    }
}

/// Jobs that end in the second in which they begin.
fn brief_jobs(events: &[(u64, Happening, Row)]) -> BTreeSet<Row> {
    let is_start = |h: Happening| matches!(h, Happening::OrdinaryStart | Happening::DataStart);
    let starts = events
        .iter()
        .filter(|(_, happening, _)| is_start(*happening));
    let starts: BTreeMap<Row, u64> = starts.map(|(time, _, row)| (*row, *time)).collect();
    let ends = events
        .iter()
        .filter(|(_, happening, _)| *happening == Happening::End);
    ends.filter(|(time, _, row)| starts.get(row) == Some(time))
        .map(|(_, _, row)| *row)
        .collect()
}
