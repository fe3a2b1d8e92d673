"""Checkpoints of numpy arrays and buffers at the speed of a node's memory.

docs/guide/checkpoints.md explains the words, and what a version survives.

Examples
--------
A program that continues where it was killed, with its persistent tier in $TARN_PHX_TIER:

>>> import tarn
>>> with tarn.checkpoint.Checkpoints(run="heat") as ck:
...     field = ck.zeros("field", (100, 100))
...     step = ck.zeros("step", (), int)
...     start = ck.restart()                    # None at the first start
...     while step[()] < 3:
...         step += 1
...         field += 0.5                        # computes in place
...         version = ck.commit()
>>> print(start, version, field.max())
None 1.3 1.5

Notes
-----
An array keeps its memory: it can be used after its object is destroyed and after the checkpoints
are closed. Other threads run while one is in `commit` or `restart`. Their writes to objects
during `commit` may or may not be in the version; during `restart` they must not use objects. A
second call of the same checkpoints meanwhile raises `BusyError`. A forked child cannot use its
parent's checkpoints.
"""

from __future__ import annotations

from typing import Final

from ..errors import (
    BusyError,
    ClosedError,
    CorruptError,
    Error,
    ExistsError,
    InternalError,
    InvalidError,
    LostError,
    NoMemoryError,
    NoSpaceError,
    NotFoundError,
    TimedOutError,
    UnsupportedError,
)
from ._codes import Code
from ._reader import ObjectInfo, Reader, open_version
from ._session import Checkpoints
from ._shapes import OWN, REPLICATED, Block, Irregular, Shape
from ._versions import DegradedWarning, Level, Stats, Version, VersionInfo

ALL: Final = 2**64 - 1
"""As `staging`: all of a checkpoint may be staged."""

__all__ = [
    "ALL",
    "Block",
    "BusyError",
    "Checkpoints",
    "ClosedError",
    "Code",
    "CorruptError",
    "DegradedWarning",
    "Error",
    "ExistsError",
    "InternalError",
    "InvalidError",
    "Irregular",
    "Level",
    "LostError",
    "NoMemoryError",
    "NoSpaceError",
    "NotFoundError",
    "OWN",
    "ObjectInfo",
    "REPLICATED",
    "Reader",
    "Shape",
    "Stats",
    "TimedOutError",
    "UnsupportedError",
    "Version",
    "VersionInfo",
    "open_version",
]
