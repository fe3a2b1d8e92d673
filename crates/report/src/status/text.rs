//! Status for a terminal: plain text, columns aligned.

use super::{Fill, Moving, Running, Status};
use crate::summary::{Emulated, OutcomeName};
use std::fmt;
use tarn_base::units::{Bytes, Elapsed, SECOND};

/// Lines of a table that the text shows; JSON has all.
const MAX_LINES: usize = 20;

impl fmt::Display for Status {
    /// Plain text for a terminal, columns aligned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.outcome {
            OutcomeName::Unfinished => "running",
            ended => ended.as_str(),
        };
        writeln!(
            f,
            "{}  {state}  {}  policy {}",
            self.run,
            Elapsed(self.elapsed_ns),
            self.policy
        )?;
        if let Some(e) = &self.emulated {
            writeln!(f, "{e}")?;
        }
        let c = &self.counts;
        let counts = [
            (c.committed, "done"),
            (c.reused, "reused"),
            (c.running, "running"),
            (c.staging, "staging"),
            (c.waiting, "waiting"),
            (c.failed, "failed"),
        ];
        let shown = counts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"));
        writeln!(f, "steps: {}", shown.collect::<Vec<_>>().join(", "))?;
        if c.unexpanded_steps > 0 {
            writeln!(
                f,
                "  and {} whose number of instances is not known yet",
                c.unexpanded_steps
            )?;
        }
        for lost in &self.lost_nodes {
            writeln!(f, "lost: {lost}")?;
        }
        self.tables(f)?;
        let Some(failure) = &self.last_failure else {
            return Ok(());
        };
        writeln!(
            f,
            "\nlast failure at {}: {}",
            Elapsed(failure.when),
            failure.what
        )?;
        writeln!(f, "  {}", failure.message)?;
        for line in failure.log_tail.iter().flat_map(|t| t.lines()) {
            writeln!(f, "  | {line}")?;
        }
        Ok(())
    }
}

impl Status {
    fn tables(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |r: &Running| {
            let nodes = match &r.nodes[..] {
                [first, _, ..] => format!("{first} +{}", r.nodes.len() - 1),
                nodes => nodes.join(""),
            };
            vec![
                r.name.clone(),
                nodes,
                r.attempt.to_string(),
                Elapsed(r.elapsed_ns).to_string(),
            ]
        };
        table(
            f,
            &["running", "node", "attempt", "for"],
            self.running.iter().map(row),
        )?;
        let row = |t: &Moving| {
            let cells = [&t.id, &t.data, &t.kind, &t.to].map(String::clone);
            let size = [
                Bytes(t.bytes).to_string(),
                Elapsed(t.elapsed_ns).to_string(),
            ];
            cells.into_iter().chain(size).collect()
        };
        table(
            f,
            &["moving", "data", "kind", "to", "bytes", "for"],
            self.transfers.iter().map(row),
        )?;
        let row = |t: &Fill| {
            let percent = u128::from(t.held) * 100 / u128::from(t.capacity.max(1));
            vec![
                format!("{}/{}", t.node, t.tier),
                Bytes(t.held).to_string(),
                Bytes(t.capacity).to_string(),
                format!("{percent} %"),
            ]
        };
        table(
            f,
            &["tier", "held", "of", "full"],
            self.tiers.iter().map(row),
        )
    }
}

/// A table with its head, or nothing when it has no rows. Columns are flush left.
fn table(
    f: &mut fmt::Formatter<'_>,
    head: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> fmt::Result {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    let head: Vec<String> = head.iter().map(|h| h.to_uppercase()).collect();
    let shown = || std::iter::once(&head).chain(rows.iter().take(MAX_LINES));
    let width = |c: usize| {
        shown()
            .filter_map(|r| r.get(c))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    writeln!(f)?;
    for row in shown() {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        writeln!(f, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    if rows.len() > MAX_LINES {
        writeln!(f, "  and {} more", rows.len() - MAX_LINES)?;
    }
    Ok(())
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
        let say = |read, write, latency_ns| {
            Emulated {
                read,
                write,
                latency_ns,
            }
            .to_string()
        };
        assert_eq!(
            say(200_000_000, 200_000_000, 2_500_000),
            "external store emulated at 200 MB/s, 2.5 ms a file"
        );
        assert_eq!(
            say(1_500_000, 0, 0),
            "external store emulated at 1.5 MB/s read, full rate written"
        );
    }
}
