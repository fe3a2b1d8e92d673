"""Versions of checkpoints: their names, what they survive, and counts."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple


class DegradedWarning(UserWarning):
    """A version has fewer copies than the options demand."""


class Level(enum.IntEnum):
    """The losses that a version survives.

    Attributes
    ----------
    COMMITTED
        The end of the process.
    DURABLE
        A loss of power too: all of it is on the persistent tier.
    REPLICATED
        The loss of its node too.
    FLUSHED
        The loss of all nodes: it is on the external store, verified.

    Examples
    --------
    >>> Level.DURABLE > Level.COMMITTED
    True
    """

    COMMITTED = 0
    DURABLE = 1
    REPLICATED = 2
    FLUSHED = 3


class Version(NamedTuple):
    """A version: the start of the program that made it, and its number within that start.

    Examples
    --------
    >>> print(Version(2, 7))                # the seventh commit of the second start
    2.7
    """

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"


class VersionInfo(NamedTuple):
    """A version that `Checkpoints.restart` can take.

    `bytes` are those of this rank's objects, `ranks` is how many ranks wrote it, and `level` the
    least level of all ranks.
    """

    version: Version
    bytes: int
    ranks: int
    level: Level


@dataclasses.dataclass(frozen=True)
class Stats:
    """The work of this rank since it began.

    Names that end with `_ns` are nanoseconds, with `_bytes` bytes, with `_rate` bytes a second;
    all others are counts. phx_stats(3) explains each. `power_fail` is what the persistent tier
    keeps without power: 0 nothing, 1 what was synced, 2 what was flushed, 3 all.
    """

    power_fail: int
    commits: int
    commit_ns: int
    waited_ns: int
    bytes: int
    staged_bytes: int
    ahead_bytes: int
    copied_twice_bytes: int
    destage_ns: int
    last_commit_ns: int
    last_staged_bytes: int
    last_destage_ns: int
    persistent_rate: int
    memory_rate: int
    degraded: int
    damaged_chunks: int
    replicated: int
    bare: int
    restored_bytes: int
    restore_ns: int
    flushed: int
    flushes_skipped: int
    flush_failed: int
    last_flush_ns: int
    pinned: int
    rma_put_bytes: int
    tcp_put_bytes: int
    rma_fetched_bytes: int
    tcp_fetched_bytes: int
