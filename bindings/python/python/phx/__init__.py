"""The former name of `tarn.checkpoint`, with `Objects` of `tarn.objects`: it stays usable.

Examples
--------
>>> import phx, tarn
>>> phx.Checkpoints is tarn.checkpoint.Checkpoints, phx.Objects is tarn.objects.Objects
(True, True)
"""

from __future__ import annotations

from tarn.checkpoint import (
    ALL,
    Block,
    BusyError,
    Checkpoints,
    ClosedError,
    Code,
    CorruptError,
    DegradedWarning,
    Error,
    ExistsError,
    InternalError,
    InvalidError,
    Irregular,
    Level,
    LostError,
    NoMemoryError,
    NoSpaceError,
    NotFoundError,
    OWN,
    ObjectInfo,
    REPLICATED,
    Reader,
    Shape,
    Stats,
    TimedOutError,
    UnsupportedError,
    Version,
    VersionInfo,
    open_version,
)
from tarn.objects import Objects

from . import objects

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
    "Objects",
    "objects",
]
