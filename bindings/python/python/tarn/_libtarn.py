"""libtarn by ctypes: the structures of tarn.h, and where the library is found."""

from __future__ import annotations

import ctypes
import os
import shutil
from typing import Any

UNKNOWN = 2**64 - 1
"""The value in tarn.h for a number that is not known."""


class Place(ctypes.Structure):
    """struct tarn_place"""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("region", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("node", ctypes.c_char_p),
        ("space", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
    ]


class Task(ctypes.Structure):
    """struct tarn_task"""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("verify", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("after_count", ctypes.c_uint32),
        ("after", ctypes.POINTER(ctypes.c_uint64)),
        ("deadline_ns", ctypes.c_uint64),
        ("rate", ctypes.c_uint64),
        ("source", Place),
        ("dest", Place),
    ]


class Outcome(ctypes.Structure):
    """struct tarn_outcome"""

    _fields_ = [
        ("id", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("code", ctypes.c_int32),
        ("late", ctypes.c_uint8),
        ("has_checksum", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 2),
        ("checksum", ctypes.c_uint8 * 16),
        ("text", ctypes.c_char * 192),
    ]


class Status(ctypes.Structure):
    """struct tarn_status"""

    _fields_ = [
        ("id", ctypes.c_uint64),
        ("done", ctypes.c_uint64),
        ("all", ctypes.c_uint64),
        ("left", ctypes.c_uint64),
        ("state", ctypes.c_int32),
        ("before", ctypes.c_uint32),
    ]


class Space(ctypes.Structure):
    """struct tarn_space"""

    _fields_ = [
        ("name", ctypes.c_char * 65),
        ("readable", ctypes.c_uint8),
        ("writable", ctypes.c_uint8),
        ("manageable", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 4),
        ("capacity", ctypes.c_uint64),
        ("quota", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("held", ctypes.c_uint64),
        ("own", ctypes.c_uint64),
    ]


class Stats(ctypes.Structure):
    """struct tarn_stats"""

    _fields_ = [
        ("waiting", ctypes.c_uint64),
        ("queued", ctypes.c_uint64),
        ("running", ctypes.c_uint64),
        ("done", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("left", ctypes.c_uint64),
    ]


_library: Any = None


def library() -> Any:
    """libtarn, loaded once.

    It is the file that $TARN_LIBRARY names, else the system's, else the one that was built or
    installed with the command `tarn` in the PATH.

    Raises
    ------
    OSError
        It cannot be loaded.
    """
    global _library
    if _library is None:
        loaded: Any = _open()
        loaded.tarn_last_error.restype = ctypes.c_char_p
        for name in ("tarn_close", "tarn_task_init"):
            getattr(loaded, name).restype = None
        _library = loaded
    return _library


def _open() -> ctypes.CDLL:
    named = os.environ.get("TARN_LIBRARY")
    try:
        return ctypes.CDLL(named or "libtarn.so")
    except OSError as error:
        beside = None if named else _beside_the_program()
        if beside is not None:
            return ctypes.CDLL(beside)
        raise OSError(
            f"cannot load libtarn: {error}; set TARN_LIBRARY to the path of libtarn.so "
            "(`make install` puts it into lib/)"
        ) from error


def _beside_the_program() -> str | None:
    command = shutil.which("tarn")
    if command is None:
        return None
    folder = os.path.dirname(os.path.realpath(command))
    places = [os.path.join(folder, "libtarn.so"), os.path.join(folder, "..", "lib", "libtarn.so")]
    return next((place for place in places if os.path.isfile(place)), None)


def last_error() -> str:
    """Why this thread's last call failed."""
    text: bytes = library().tarn_last_error()
    return text.decode(errors="replace")
