//! Traces of batch jobs in the Standard Workload Format 2.2 (Feitelson, Parallel Workloads Archive): a line a job,
//! 18 numbers in each.

use crate::diag::{Finding, FindingCode};
use crate::site::alone::Alone;
use crate::site::draft::{DraftJob, MAX_TIME, plain_job};
use crate::site::gather::Gather;
use crate::site::model::{DataModel, Sampler};
use std::io::{self, BufRead, Read};
use tarn_types::site::{Input, Item, ItemId, Skipped, Spread, WorkItem};
use tarn_types::units::{Nanos, SECOND, Time};

/// Numbers in a line.
const FIELDS: usize = 18;
/// Bytes of a line that are looked at: 18 numbers are far shorter.
const MAX_LINE: u64 = 4096;
/// Seconds that a time may be.
const MAX_SECONDS: f64 = (MAX_TIME / SECOND) as f64;

/// How a trace is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceOptions {
    /// Processors of the trace that make one node of the machine.
    pub procs_per_node: u32,
    /// Jobs that are used at most.
    pub max_jobs: u64,
    /// The data that jobs are given; `None` for none.
    pub data: Option<DataModel>,
    /// Use jobs whose status is -1 (unknown) as well: some logs record none.
    pub unknown_status: bool,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            procs_per_node: 1,
            max_jobs: u64::MAX,
            data: None,
            unknown_status: false,
        }
    }
}

/// The used fields of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SwfRecord {
    submit: Nanos,
    run: Nanos,
    nodes: u32,
    limit: Option<Nanos>,
}

/// Why a line is not used.
type Odd = &'static str;

/// The machine, as far as a trace needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceMachine {
    pub(crate) nodes: u32,
    pub(crate) alone: Alone,
}

/// Reads a trace; its first used line is submitted at `arrives`.
///
/// # Errors
/// It cannot be read, or no line of it can be used.
pub(crate) fn read_trace(
    gather: &mut Gather,
    file: &str,
    lines: &mut dyn BufRead,
    target: TraceMachine,
    options: &TraceOptions,
    arrives: Time,
) -> Result<(), Finding> {
    if options.data.is_some() && target.alone.read_rate(1).min(target.alone.write_rate(1)) == 0 {
        return Err(Finding::error(
            FindingCode::BadValue,
            "data cannot be modelled: the machine's external store has no rates",
        )
        .help("give `[external]` of the cluster file `read` and `write`, or `client-read` and `client-write`"));
    }
    let mut trace = SwfTraceReader {
        sampler: options.data.map(Sampler::new),
        target,
        arrives,
        origin: None,
        last: 0,
        used: 0,
        guessed: 0,
        skipped: Vec::new(),
    };
    let mut line = Vec::with_capacity(256);
    let mut number = 0;
    while trace.used < options.max_jobs && next_line(lines, &mut line).map_err(|e| broken(&e))? {
        number += 1;
        let text = line.trim_ascii();
        if text.is_empty() || text.starts_with(b";") {
            continue;
        }
        let parsed = parse(text, options, target.nodes).and_then(|line| trace.in_order(line));
        match parsed {
            Ok(line) => {
                gather.check_workload_size(1, 2)?;
                trace.add(gather, number, line);
            }
            Err(odd) => trace.skip(odd, number),
        }
    }
    trace.finish(gather, file)
}

fn broken(error: &io::Error) -> Finding {
    Finding::error(
        FindingCode::Syntax,
        format!("the trace cannot be read to its end: {error}"),
    )
    .help("fetch the file again: it is damaged or cut off")
}

/// Reads one line; the part beyond `MAX_LINE` bytes is left out. `false` at the end.
fn next_line(lines: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if lines.take(MAX_LINE).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    let mut ended = line.ends_with(b"\n") || (line.len() as u64) < MAX_LINE;
    while !ended {
        let buffer = lines.fill_buf()?;
        let newline = buffer.iter().position(|b| *b == b'\n');
        let used = newline.map_or(buffer.len(), |at| at + 1);
        ended = newline.is_some() || buffer.is_empty();
        lines.consume(used);
    }
    Ok(true)
}

/// A trace while it is read.
struct SwfTraceReader {
    sampler: Option<Sampler>,
    target: TraceMachine,
    arrives: Time,
    /// When the first used line was submitted.
    origin: Option<Nanos>,
    /// When the last used line was submitted.
    last: Nanos,
    used: u64,
    /// Lines without a requested time.
    guessed: u64,
    /// Reasons with the number of lines and the first of them.
    skipped: Vec<(Odd, u64, u64)>,
}

impl SwfTraceReader {
    fn in_order(&self, line: SwfRecord) -> Result<SwfRecord, Odd> {
        match line.submit < self.last {
            true => Err("it was submitted before the line above it"),
            false => Ok(line),
        }
    }

    fn skip(&mut self, odd: Odd, number: u64) {
        match self.skipped.iter_mut().find(|(why, _, _)| *why == odd) {
            Some((_, count, _)) => *count += 1,
            None => self.skipped.push((odd, 1, number)),
        }
    }

    /// Adds the job of a line. The recorded run time is computing and reading and writing alone (Weiland, equation 5).
    fn add(&mut self, gather: &mut Gather, number: u64, line: SwfRecord) {
        let TraceMachine { alone, .. } = self.target;
        let io = self
            .sampler
            .and_then(|s| s.sample(number, line.nodes, line.run, alone));
        let (read, written) = io.map_or((0, 0), |io| (io.read, io.written));
        let moving = alone.time(line.nodes, read, written);
        let limit = line.limit.unwrap_or(line.run).max(SECOND);
        let mut job = plain_job(line.nodes);
        job.limit = limit;
        job.expect = limit.saturating_sub(moving);
        let mut items = Vec::new();
        let item = |bytes: u64, outside: bool| WorkItem {
            item: Item {
                bytes,
                outside,
                keep: !outside,
            },
            name: "".into(),
            bytes,
        };
        if read > 0 {
            items.push(item(read, true));
            job.reads.push(Input {
                item: ItemId(0),
                spread: Spread::Share,
            });
        }
        if written > 0 {
            job.writes.push(ItemId(items.len() as u32));
            items.push(item(written, false));
        }
        let draft = DraftJob {
            name: "".into(),
            job,
            compute: line.run.saturating_sub(moving),
            follows: None,
        };
        let origin = *self.origin.get_or_insert(line.submit);
        gather.batch(
            draft,
            &items,
            self.arrives.saturating_add(line.submit - origin),
        );
        self.last = line.submit;
        self.used += 1;
        self.guessed += u64::from(line.limit.is_none());
    }

    fn finish(self, gather: &mut Gather, file: &str) -> Result<(), Finding> {
        if self.used == 0 {
            let reasons: Vec<String> = self
                .skipped
                .iter()
                .map(|(why, count, first)| format!("{count}, first line {first}: {why}"))
                .collect();
            let why = match reasons.is_empty() {
                true => "it has no line of data".to_owned(),
                false => reasons.join("; "),
            };
            return Err(Finding::error(FindingCode::BadValue, format!("no line of the trace can be used ({why})")).help(
                "a trace has 18 numbers in each line (Standard Workload Format); `procs-per-node` sets how many processors make a node, `unknown-status = true` uses jobs whose status is -1",
            ));
        }
        if self.guessed > 0 {
            gather.note(format!(
                "{file}: {} jobs have no requested time; their run time is taken for it",
                self.guessed
            ));
        }
        for (why, count, first_line) in self.skipped {
            gather.skip(Skipped {
                file: file.into(),
                why: why.into(),
                count,
                first_line,
            });
        }
        Ok(())
    }
}

/// The numbers of a line.
fn fields(line: &[u8]) -> Result<[f64; FIELDS], Odd> {
    let mut fields = [0.0; FIELDS];
    let mut count = 0;
    for word in line
        .split(u8::is_ascii_whitespace)
        .filter(|w| !w.is_empty())
    {
        let field = fields.get_mut(count).ok_or("it has not 18 fields")?;
        *field = number(word).ok_or("a field is not a number")?;
        count += 1;
    }
    match count {
        FIELDS => Ok(fields),
        _ => Err("it has not 18 fields"),
    }
}

/// A decimal number. Most are short integers, which need no general parser.
fn number(word: &[u8]) -> Option<f64> {
    let (negative, digits) = match word.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, word),
    };
    if !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_digit) {
        let value = digits
            .iter()
            .fold(0u64, |v, d| v * 10 + u64::from(d - b'0')) as f64;
        return Some(if negative { -value } else { value });
    }
    let value: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

fn nanos(seconds: f64) -> Option<Nanos> {
    (0.0..=MAX_SECONDS)
        .contains(&seconds)
        .then(|| (seconds * SECOND as f64).round() as Nanos)
}

fn parse(line: &[u8], options: &TraceOptions, nodes: u32) -> Result<SwfRecord, Odd> {
    let field = fields(line)?;
    let (submit, run, allocated) = (field[1], field[3], field[4]);
    let (requested, time, status) = (field[7], field[8], field[10]);
    let procs = if requested > 0.0 {
        requested
    } else {
        allocated
    };
    match status as i64 {
        0 | 1 => {}
        2..=4 => return Err("it is a part of a job that has its own line (status 2, 3 or 4)"),
        5 if run <= 0.0 || allocated == 0.0 => {
            return Err("it was cancelled before it began (status 5)");
        }
        5 => {}
        -1 if options.unknown_status => {}
        _ => return Err("its status is unknown"),
    }
    if status.fract() != 0.0 {
        return Err("its status is unknown");
    }
    if submit < 0.0 {
        return Err("its submit time is negative or missing");
    }
    if run < 0.0 {
        return Err("its run time is negative or missing");
    }
    if procs < 1.0 {
        return Err("it has no processors");
    }
    let wanted = (procs / f64::from(options.procs_per_node.max(1))).ceil();
    if wanted > f64::from(nodes) {
        return Err("it wants more nodes than the machine has");
    }
    let too_long = "a time in it is too large";
    Ok(SwfRecord {
        submit: nanos(submit).ok_or(too_long)?,
        run: nanos(run).ok_or(too_long)?,
        nodes: wanted as u32,
        limit: match time > 0.0 {
            true => Some(nanos(time).ok_or(too_long)?),
            false => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"12"), Some(12.0));
        assert_eq!(number(b"-1"), Some(-1.0));
        assert_eq!(number(b"1.5"), Some(1.5));
        assert_eq!(
            number(b"12345678901234567890"),
            Some(12345678901234567890.0)
        );
        for bad in ["", "-", "x", "1x", "nan", "inf", "0x10", "--1", "1e400"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn long_lines_are_left_out() {
        let mut text = vec![b'1'; 10_000];
        text.extend_from_slice(b"\nnext\nlast");
        let mut lines: &[u8] = &text;
        let mut line = Vec::new();
        let mut seen = Vec::new();
        while next_line(&mut lines, &mut line).expect("memory") {
            seen.push(line.len());
        }
        assert_eq!(seen, [MAX_LINE as usize, 5, 4]);
    }
}
