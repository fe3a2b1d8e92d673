//! How a request is cut into pieces, each of which one call does.

use super::Units;
use super::unit_io::{BUFFER, PieceOperation, STRAIGHT, UnitChange, UnitOperation};
use tarn_ring::MemorySpan;

impl Units {
    /// The first piece of the requested bytes, and the rest.
    pub(super) fn piece(
        &self,
        at: u64,
        work: UnitOperation,
    ) -> (PieceOperation, Option<(u64, UnitOperation)>) {
        let (grain, unit) = (self.grain, self.layout.unit as usize);
        let goes_straight = |span: MemorySpan| span.start().addr().is_multiple_of(grain.memory);
        match work {
            UnitOperation::Read(span) => {
                let skip = (at % grain.bytes as u64) as usize;
                let whole = span.len() / grain.bytes * grain.bytes;
                let is_straight = skip == 0 && whole > 0 && goes_straight(span);
                let (to, rest) = span.split(match is_straight {
                    true => whole.min(STRAIGHT),
                    false => BUFFER - skip,
                });
                let bounced = (!is_straight).then_some(skip);
                let rest = left(at, to, rest, UnitOperation::Read);
                (PieceOperation::Read { at, to, bounced }, rest)
            }
            UnitOperation::Write(span) => {
                let within = (at % unit as u64) as usize;
                let first = at / unit as u64;
                if within > 0 || span.len() < unit {
                    let (from, rest) = span.split(unit - within);
                    let job = PieceOperation::Change {
                        unit: first,
                        within,
                        change: UnitChange::Bytes(from),
                    };
                    return (job, left(at, from, rest, UnitOperation::Write));
                }
                let bounced = !goes_straight(span);
                let most = match bounced {
                    true => BUFFER,
                    false => STRAIGHT,
                };
                let (from, rest) = span.split(most.min(span.len() / unit * unit));
                let job = PieceOperation::Write {
                    first,
                    end: first + (from.len() / unit) as u64,
                    from,
                    bounced,
                };
                (job, left(at, from, rest, UnitOperation::Write))
            }
            UnitOperation::Word(change) => {
                let job = PieceOperation::Change {
                    unit: at / unit as u64,
                    within: (at % unit as u64) as usize,
                    change,
                };
                (job, None)
            }
        }
    }
}

fn left(
    at: u64,
    done: MemorySpan,
    rest: MemorySpan,
    work: fn(MemorySpan) -> UnitOperation,
) -> Option<(u64, UnitOperation)> {
    (rest.len() > 0).then(|| (at + done.len() as u64, work(rest)))
}
