"""The types that describe tasks of tarnd."""

from __future__ import annotations

import builtins
import enum
import os
from typing import NamedTuple


class Code(enum.IntEnum):
    """The codes of tarn.h (docs/reference/task-codes.md)."""

    OK = 0
    INVALID = 1
    BUSY = 2
    NOTFOUND = 3
    DENIED = 4
    NOSPACE = 5
    QUOTA = 6
    EXISTS = 7
    CHANGED = 8
    CORRUPT = 9
    IO = 10
    CANCELLED = 11
    DEPENDENCY = 12
    UNSUPPORTED = 13
    LOST = 14
    TIMEDOUT = 15
    VERSION = 16
    INTERNAL = 17
    VOLATILE = 18


class State(enum.IntEnum):
    """The state of a task."""

    UNKNOWN = 0
    WAITING = 1
    QUEUED = 2
    RUNNING = 3
    DONE = 4
    FAILED = 5
    PAUSED = 6


class Space(NamedTuple):
    """A file or folder of a dataspace of this node.

    Examples
    --------
    >>> Space("fast", "results/mesh")
    Space(name='fast', path='results/mesh')
    """

    name: str
    path: str | bytes | os.PathLike[str] = ""


class Node(NamedTuple):
    """A file or folder of a dataspace of another node.

    Examples
    --------
    >>> Node("n2", "fast", "results/mesh").node
    'n2'
    """

    node: str
    space: str
    path: str | bytes | os.PathLike[str]


class Part(NamedTuple):
    """A piece of registered memory: its region, and its offset and length in bytes."""

    region: int
    offset: int
    length: int


class Outcome(NamedTuple):
    """How a task ended.

    `code` is `Code.OK` when it was done, else `text` says why not. `seconds` is how long it
    took, `late` whether its deadline was over, `checksum` 16 bytes of XXH3 where it was hashed.
    """

    id: int
    code: Code
    text: str
    bytes: int
    seconds: float
    late: bool
    checksum: builtins.bytes | None


class Status(NamedTuple):
    """How far a task is: bytes done and of all, seconds left, tasks before it in its queue.

    `all` and `left` are None while they are not known.
    """

    id: int
    state: State
    done: int
    all: int | None
    left: float | None
    before: int


class SpaceInfo(NamedTuple):
    """A dataspace: sizes in bytes, and what this user may do. `own` is what this user holds."""

    name: str
    capacity: int
    quota: int
    used: int
    reserved: int
    own: int
    readable: bool
    writable: bool
    manageable: bool


class Stats(NamedTuple):
    """Counts of tasks of tarnd, bytes moved, and seconds left to do (None: not known)."""

    waiting: int
    queued: int
    running: int
    done: int
    failed: int
    bytes: int
    left: float | None
