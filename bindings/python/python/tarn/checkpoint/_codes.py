"""Codes of phx.h, and the errors that they are."""

from __future__ import annotations

import enum
from typing import Any

from .. import errors


class Code(enum.IntEnum):
    """Kinds of errors of checkpoints and objects; the numbers are those of phx.h."""

    INVALID = 2
    BUSY = 3
    NOTFOUND = 4
    EXISTS = 5
    NOSPACE = 6
    NOMEM = 7
    CORRUPT = 8
    IO = 9
    TIMEDOUT = 10
    LOST = 11
    UNSUPPORTED = 12
    SHAPE = 13
    INIT = 14
    INTERNAL = 15


_KINDS: dict[Any, type[errors.Error]] = {
    Code.INVALID: errors.InvalidError,
    Code.BUSY: errors.BusyError,
    Code.NOTFOUND: errors.NotFoundError,
    Code.EXISTS: errors.ExistsError,
    Code.NOSPACE: errors.NoSpaceError,
    Code.NOMEM: errors.NoMemoryError,
    Code.CORRUPT: errors.CorruptError,
    Code.TIMEDOUT: errors.TimedOutError,
    Code.LOST: errors.LostError,
    Code.UNSUPPORTED: errors.UnsupportedError,
    Code.INIT: errors.ClosedError,
    Code.INTERNAL: errors.InternalError,
}


def make_error(code: int, text: str) -> errors.Error:
    """The error of a code; the native library raises what this returns."""
    return errors.make(_KINDS, Code(code), text)


def invalid(text: str) -> errors.InvalidError:
    """The error of a wrong argument."""
    return errors.InvalidError(Code.INVALID, text)
