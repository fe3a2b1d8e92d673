//! Status for a terminal: plain text, columns aligned.

use super::{
    ActiveTransferStatus, FailedNow, NodeNow, RunStatus, RunningAttemptStatus, TierFillStatus,
    TransferKindBytes,
};
use crate::count::unexpanded_text;
use crate::summary::{Emulated, MAX_NOT_RUN, OutcomeName};
use std::fmt;
use tarn_types::text::{COMMAND_ENDED, FATE_AND_LOG};
use tarn_types::units::{Bytes, Elapsed, SECOND};

/// Lines of a table that the text shows; JSON has all.
const MAX_LINES: usize = 20;

impl fmt::Display for RunStatus {
    /// Plain text for a terminal, columns aligned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(MAX_LINES))
    }
}

impl RunStatus {
    /// As it prints itself, with at most `lines` lines a table.
    pub fn text(&self, lines: usize) -> String {
        let mut text = self.head(lines);
        self.tables(&mut text, lines);
        let Some(failure) = &self.last_failure else {
            return text;
        };
        let mut shown = self.failures.iter().take(lines);
        let is_shown = shown.any(|f| f.message == failure.message);
        if is_shown && failure.log_tail.is_none() {
            return text;
        }
        text += &format!(
            "\nlast failure at {}: {}\n",
            Elapsed(failure.when),
            failure.what
        );
        if !is_shown {
            text += &format!("  {}\n", failure.message);
        }
        for line in failure.log_tail.iter().flat_map(|t| t.lines()) {
            text += &format!("  | {line}\n");
        }
        text
    }

    fn head(&self, lines: usize) -> String {
        let mut text = format!(
            "{}  {}  {}  policy {}\n",
            self.run,
            self.state(),
            Elapsed(self.elapsed_ns),
            self.policy
        );
        if let Some(e) = &self.emulated {
            text += &format!("{e}\n");
        }
        let may_come = self.outcome == OutcomeName::Unfinished && self.alive != Some(false);
        text += &format!(
            "steps: {}{}\n",
            self.steps(),
            unexpanded_text(self.counts.unexpanded_steps, &self.unexpanded, may_come)
        );
        for failed in self.failures.iter().take(lines) {
            text += &format!("failed: {}: {}\n", failed.what, failed.brief());
        }
        let more = self.failures.len().saturating_sub(lines) as u64 + self.more_failures;
        if more > 0 {
            text += &format!("failed: and {more} more\n");
        }
        for step in self.not_run.iter().take(MAX_NOT_RUN) {
            text += &format!("not run: {step}\n");
        }
        if let Some(more @ 1..) = self.not_run.len().checked_sub(MAX_NOT_RUN) {
            text += &format!("not run: and {more} more step(s)\n");
        }
        for data in &self.not_rescued {
            text += &format!("data: {data}\n");
        }
        for lost in &self.lost_nodes {
            text += &format!("lost: {lost}\n");
        }
        text
    }

    fn state(&self) -> &'static str {
        match (self.outcome, self.alive) {
            (OutcomeName::Unfinished, Some(false)) => "unfinished",
            (OutcomeName::Unfinished, _) => "running",
            (ended, _) => ended.as_str(),
        }
    }

    fn steps(&self) -> String {
        let c = &self.counts;
        let waiting = match self.outcome {
            OutcomeName::Unfinished => "waiting",
            _ => "not run",
        };
        let counts = [
            (c.committed, "done"),
            (c.reused, "reused"),
            (c.running, "running"),
            (c.staging, "staging"),
            (c.waiting, waiting),
            (c.failed, "failed"),
        ];
        let shown = counts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// All in one line, for a log of a watched run.
    pub fn line(&self) -> String {
        let seconds = self.elapsed_ns as f64 / SECOND as f64;
        let mut text = format!(
            "[{seconds:>8.2} s] {} {}: {}",
            self.run,
            self.state(),
            self.steps()
        );
        let moving: Vec<_> = self.transfers.iter().filter(|t| t.done.is_some()).collect();
        if let Some(first) = moving.first() {
            let sum = |of: fn(&ActiveTransferStatus) -> Option<u64>| {
                let all = moving.iter().filter_map(|t| of(t));
                Bytes(all.fold(0u64, u64::saturating_add))
            };
            let more = match moving.len() - 1 {
                0 => String::new(),
                n => format!(" +{n}"),
            };
            text += &format!(
                "; moving {} to {}{more}: {} of {} at {}/s",
                first.data,
                first.to,
                sum(|t| t.done),
                sum(|t| Some(t.bytes)),
                sum(|t| t.rate)
            );
        }
        let fullest = self.tiers.iter().filter(|t| t.held > 0);
        if let Some(t) = fullest.max_by_key(|t| percent(t)) {
            text += &format!("; {}/{} {} % full", t.node, t.tier, percent(t));
        }
        let lost = self.nodes.iter().filter(|n| n.lost);
        let lost: Vec<&str> = lost.map(|n| n.node.as_str()).collect();
        if !lost.is_empty() {
            text += &format!("; lost: {}", lost.join(", "));
        }
        text
    }

    fn tables(&self, text: &mut String, lines: usize) {
        self.running_tables(text, lines);
        self.movement_tables(text, lines);
        self.node_tables(text, lines);
    }

    /// The attempts that run: where, why not for the first time, and their resources beside their data.
    fn running_tables(&self, text: &mut String, lines: usize) {
        let row = |r: &RunningAttemptStatus| {
            let nodes = match &r.nodes[..] {
                [first, _, ..] => format!("{first} +{}", r.nodes.len() - 1),
                nodes => nodes.join(""),
            };
            vec![
                r.name.clone(),
                nodes,
                r.attempt.to_string(),
                r.phase.clone().unwrap_or_default(),
                Elapsed(r.elapsed_ns).to_string(),
            ]
        };
        let head = ["running", "node", "attempt", "phase", "for"];
        table(text, lines, &head, self.running.iter().map(row));
        let again = self.running.iter().filter_map(|r| {
            let how = r.restarted.as_ref()?;
            Some(vec![r.name.clone(), how.clone()])
        });
        table(text, lines, &["again", "how"], again);
        let partitions = self.running.iter().flat_map(|r| {
            let all = r.partitions.iter();
            all.map(|partition| vec![r.name.clone(), partition.clone()])
        });
        table(text, lines, &["with", "partition"], partitions);
        let images = self.running.iter().filter_map(|r| {
            let images = r.images.as_ref()?;
            Some(vec![r.name.clone(), images.clone()])
        });
        table(text, lines, &["images of", "so far"], images);
    }

    /// The transfers under way, and the bytes moved so far.
    fn movement_tables(&self, text: &mut String, lines: usize) {
        let rate = |r: Option<u64>| r.map_or_else(String::new, |r| format!("{}/s", Bytes(r)));
        let row = |t: &ActiveTransferStatus| {
            let known = |n: Option<String>| n.unwrap_or_default();
            vec![
                t.id.clone(),
                t.data.clone(),
                t.kind.clone(),
                Bytes(t.bytes).to_string(),
                known(t.done.map(|d| Bytes(d).to_string())),
                rate(t.rate),
                known(t.left_ns.map(|l| Elapsed(l).to_string())),
                Elapsed(t.elapsed_ns).to_string(),
                t.from.clone(),
                t.to.clone(),
            ]
        };
        let head = [
            "moving", "data", "kind", "bytes", "done", "rate", "left", "for", "from", "to",
        ];
        // Transfers that wait for their turn come last.
        let (move_now, wait): (Vec<_>, Vec<_>) =
            self.transfers.iter().partition(|t| t.done.is_some());
        let rows = move_now.into_iter().chain(wait).map(row);
        table(text, lines, &head, rows);
        let row = |m: &TransferKindBytes| {
            let all = [Bytes(m.bytes).to_string(), rate(Some(m.mean)), rate(m.rate)];
            std::iter::once(m.kind.clone()).chain(all).collect()
        };
        let head = ["moved", "bytes", "mean", "now"];
        table(text, lines, &head, self.moved.iter().map(row));
    }

    fn node_tables(&self, text: &mut String, lines: usize) {
        let row = |n: &NodeNow| {
            let state = if n.lost { "lost" } else { "" };
            vec![
                n.node.clone(),
                state.to_owned(),
                n.running.to_string(),
                format!("{} of {}", n.cores_busy, n.cores),
            ]
        };
        let head = ["node", "state", "running", "cores"];
        table(text, lines, &head, self.nodes.iter().map(row));
        let row = |t: &TierFillStatus| {
            vec![
                format!("{}/{}", t.node, t.tier),
                Bytes(t.held).to_string(),
                Bytes(t.capacity).to_string(),
                format!("{} %", percent(t)),
            ]
        };
        let head = ["tier", "held", "of", "full"];
        table(text, lines, &head, self.tiers.iter().map(row));
    }
}

impl FailedNow {
    /// Why, in a few words: of a command how it ended, and its log.
    fn brief(&self) -> String {
        let line = self.message.lines().next().unwrap_or_default();
        let own = format!("step `{}`: ", self.what);
        let line = line.strip_prefix(&own).unwrap_or(line);
        let ended = line.strip_prefix(COMMAND_ENDED);
        match ended.and_then(|ended| ended.split_once(FATE_AND_LOG)) {
            Some((status, log)) => format!("{status}; log {log}"),
            None => line.to_owned(),
        }
    }
}

fn percent(t: &TierFillStatus) -> u128 {
    u128::from(t.held) * 100 / u128::from(t.capacity.max(1))
}

/// A table with its head, or nothing when it has no rows. Columns are flush left; one without a word is left out.
fn table(text: &mut String, lines: usize, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return;
    }
    let head: Vec<String> = head.iter().map(|h| h.to_uppercase()).collect();
    let shown = || std::iter::once(&head).chain(rows.iter().take(lines));
    let width = |c: usize| {
        let has_text = |r: &&Vec<String>| r.get(c).is_some_and(|cell| !cell.is_empty());
        if !rows.iter().take(lines).any(|r| has_text(&r)) {
            return None;
        }
        let widths = shown().filter_map(|r| r.get(c));
        widths.map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<Option<usize>> = (0..head.len()).map(width).collect();
    text.push('\n');
    for row in shown() {
        let cells = row.iter().zip(&widths);
        let cells = cells.filter_map(|(cell, width)| Some(format!("{cell:w$}", w = (*width)?)));
        let line = cells.collect::<Vec<_>>().join("  ");
        *text += &format!("  {}\n", line.trim_end());
    }
    if rows.len() > lines {
        *text += &format!("  and {} more\n", rows.len() - lines);
    }
}

impl fmt::Display for Emulated {
    /// `external store emulated at 200 MB/s, 2 ms a file`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |r: u64| format!("{} MB/s", (r as f64 / 1e5).round() / 10.0);
        write!(f, "external store emulated at ")?;
        match (self.read, self.write) {
            (0, 0) => write!(f, "full rate")?,
            (r, w) if r == w => write!(f, "{}", rate(r))?,
            (r, 0) => write!(f, "{} read, full rate written", rate(r))?,
            (0, w) => write!(f, "full rate read, {} written", rate(w))?,
            (r, w) => write!(f, "{} read, {} written", rate(r), rate(w))?,
        }
        if self.latency_ns > 0 {
            write!(
                f,
                ", {} ms a file",
                self.latency_ns as f64 / (SECOND / 1000) as f64
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulation_is_said_in_words() {
        let displayed = |read, write, latency_ns| {
            Emulated {
                read,
                write,
                latency_ns,
            }
            .to_string()
        };
        assert_eq!(
            displayed(200_000_000, 200_000_000, 2_500_000),
            "external store emulated at 200 MB/s, 2.5 ms a file"
        );
        assert_eq!(
            displayed(1_500_000, 0, 0),
            "external store emulated at 1.5 MB/s read, full rate written"
        );
    }
}
