"""The errors of tarn: one hierarchy for runs, data, tasks, checkpoints and objects.

Every error is an `Error` with a `code`, a `message` and sometimes a `hint`. Its class says
the kind, whichever part of tarn raises it: ``except tarn.NotFoundError`` catches a run, a
dataset, a task and a checkpoint that do not exist. Where Python has a fitting exception of
its own, the class derives from that too.
"""

from __future__ import annotations

import enum
from typing import Any


class ExitCode(enum.IntEnum):
    """The exit codes of the commands `tarn` and `tarnd` (docs/reference/exit-codes.md)."""

    SUCCESS = 0
    WORKFLOW_FAILED = 1
    USAGE = 2
    INVALID_WORKFLOW = 3
    NO_SPACE = 4
    NO_ROOM = 4  # the former name of NO_SPACE
    STATE = 5
    BUSY = 6
    NOT_FOUND = 7
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143


class Error(Exception):
    """A failed operation, and the reason.

    Parameters
    ----------
    code : enum.IntEnum
        See `code`.
    message : str
        See `message`.
    hint : str, optional
        See `hint`.

    Attributes
    ----------
    code : enum.IntEnum
        The number that the interface documents: `ExitCode` of runs and datasets,
        `tarn.tasks.Code` of tasks, `tarn.checkpoint.Code` of checkpoints and objects.
    message : str
        The operation that failed, with the object's name, and the reason.
    hint : str or None
        The remedy, if the message does not give one itself.

    Examples
    --------
    >>> error = NotFoundError(ExitCode.NOT_FOUND, "there is no run `heat-9`", "see tarn status")
    >>> error.code.name, isinstance(error, LookupError)
    ('NOT_FOUND', True)
    >>> print(error)
    there is no run `heat-9`
    hint: see tarn status
    """

    def __init__(self, code: enum.IntEnum, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.hint), self.__dict__


class InvalidError(Error, ValueError):
    """An argument, a command line or a workflow file is wrong; nothing was started."""


class BusyError(Error):
    """Another thread or program uses it, or a queue is full: try again later."""


class NotFoundError(Error, LookupError):
    """There is no such run, dataset, task, object, version or file."""


class ExistsError(Error):
    """The name or the destination is taken."""


class DeniedError(Error):
    """This user may not do that."""


class NoSpaceError(Error):
    """A tier, a store, a quota or the machine has too little space."""


class NoMemoryError(Error, MemoryError):
    """There is not enough memory."""


class CorruptError(Error):
    """The data read is not the data written, and no undamaged copy is left."""


class TimedOutError(Error, TimeoutError):
    """The time was over before that."""


class LostError(Error):
    """Another rank, another node or tarnd is gone."""


class ClosedError(Error):
    """The checkpoints, the version or the connection were closed."""


class UnsupportedError(Error):
    """This version, this machine or this process cannot do that."""


class StateError(Error):
    """tarn's own state or its output cannot be read or written."""


class CancelledError(Error):
    """The task was cancelled, or the run was stopped by a signal or by `tarn.cancel`."""


class WorkflowFailedError(Error):
    """A step or a transfer failed, or a replica is damaged.

    Attributes
    ----------
    summary : tarn.Summary or None
        The work of the run before it failed, if a run failed.
    """

    summary: Any = None


class InternalError(Error):
    """An error inside tarn; committed versions are intact."""


def make(kinds: dict[Any, type[Error]], code: enum.IntEnum, message: str) -> Error:
    """An error of the class that its code has in a table."""
    return kinds.get(code, Error)(code, message)
