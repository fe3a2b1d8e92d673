//! The files that ranks have on the tier and in memory: their names, and how long the head of a staging file is.

/// Bytes of the head of a staging file: the rest is as in an arena.
pub(super) const HEAD: usize = 4 << 10;
/// The suffix of arenas.
pub(super) const ARENA: &str = ".arena";
/// The suffix of copies of other ranks' parts.
const COPY: &str = ".copy";
/// The suffix of the parity of a set of ranks.
pub(super) const PARITY: &str = ".parity";
/// The suffix of parts that were made again from the others of a set.
const MADE: &str = ".made";
/// The suffix of staging files.
const STAGING: &str = ".staging";

/// The name of an arena.
pub(super) fn arena(generation: u64, rank: u32) -> String {
    format!("{generation}/{rank}{ARENA}")
}

/// The name of a copy of all that a rank has.
pub(super) fn copy(generation: u64, of: u32) -> String {
    format!("{generation}/{of}{COPY}")
}

/// The name of the parity that a rank keeps of its set.
pub(super) fn parity(generation: u64, by: u32) -> String {
    format!("{generation}/{by}{PARITY}")
}

/// Whether a name is one of those on the tier; the others are in memory.
pub(super) fn on_tier(name: &str) -> bool {
    [ARENA, COPY, PARITY, MADE]
        .iter()
        .any(|end| name.ends_with(end))
}

/// The name of a rank's staging file.
pub(super) fn staging(rank: u32) -> String {
    format!("{rank}{STAGING}")
}

/// The rank whose staging file has that name.
pub(super) fn staging_of(name: &str) -> Option<u32> {
    name.strip_suffix(STAGING)?.parse().ok()
}

/// The name of a buddy's copy of a rank's staging file.
pub(super) fn kept(rank: u32) -> String {
    format!("{rank}.buddy")
}

/// The name of a rank's part, made again from the others of its set.
pub(super) fn made(generation: u64, of: u32) -> String {
    format!("{generation}/{of}{MADE}")
}
