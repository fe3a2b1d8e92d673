"""tarn keeps a workflow's data on the compute nodes, and runs each step where its data is.

======================  ========================================================================
`tarn.run` and others   runs of workflows: `plan`, `run`, `resume`, `status`, `watch`, `why`,
                        `cancel` (module `tarn.runs`)
`tarn.data`             datasets on the nodes: put, get, list, pin, release, verify, rm
`tarn.connect`          tasks for the tarnd of this node (module `tarn.tasks`)
`tarn.checkpoint`       checkpoints of arrays at the speed of a node's memory
`tarn.objects`          the object store that all programs of a node share
======================  ========================================================================

Runs and datasets need the command `tarn` in the PATH, tasks need libtarn. docs/guide/python.md
introduces all of them. Every error is a `tarn.Error`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import data, errors, runs, tasks
from ._results import (
    Dataset,
    Decision,
    Failure,
    Plan,
    PlannedStep,
    Replica,
    RunStatus,
    StepSummary,
    Summary,
    Traffic,
)
from .errors import (
    BusyError,
    CancelledError,
    ClosedError,
    CorruptError,
    DeniedError,
    Error,
    ExistsError,
    ExitCode,
    InternalError,
    InvalidError,
    LostError,
    NoMemoryError,
    NoSpaceError,
    NotFoundError,
    StateError,
    TimedOutError,
    UnsupportedError,
    WorkflowFailedError,
)
from .runs import cancel, plan, resume, run, status, watch, why
from .tasks import Code, Connection, Memory, Node, Space, State, connect, task

if TYPE_CHECKING:
    from . import checkpoint, objects

__all__ = [
    "BusyError",
    "CancelledError",
    "ClosedError",
    "Code",
    "Connection",
    "CorruptError",
    "Dataset",
    "Decision",
    "DeniedError",
    "Error",
    "ExistsError",
    "ExitCode",
    "Failure",
    "InternalError",
    "InvalidError",
    "LostError",
    "Memory",
    "NoMemoryError",
    "NoSpaceError",
    "Node",
    "NotFoundError",
    "Plan",
    "PlannedStep",
    "Replica",
    "RunStatus",
    "Space",
    "State",
    "StateError",
    "StepSummary",
    "Summary",
    "TimedOutError",
    "Traffic",
    "UnsupportedError",
    "WorkflowFailedError",
    "cancel",
    "checkpoint",
    "connect",
    "data",
    "errors",
    "objects",
    "plan",
    "resume",
    "run",
    "runs",
    "status",
    "task",
    "tasks",
    "watch",
    "why",
]

# Loaded when they are first used: they bring tarn's native library.
_LATER = ("checkpoint", "objects")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
