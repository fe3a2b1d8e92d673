"""Tasks: a program's requests to the tarnd of its node (docs/guide/tasks.md).

tarnd copies, moves and removes files, or saves memory, while the program computes. Calls go
through libtarn: the system's, or the one that $TARN_LIBRARY names.

Examples
--------
>>> import tarn
>>> node = tarn.connect()                       # the tarnd that $TARN_SOCKET names
>>> memory = node.memory(1 << 20)
>>> memory.data[:5] = b"hello"
>>> saved = node.copy(memory, tarn.Space("fast", "doc/saved"))
>>> node.wait(saved).bytes                      # the program computes meanwhile
1048576
>>> memory.close()
>>> _ = node.wait(node.remove(tarn.Space("fast", "doc")))
>>> node.close()
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Union

from . import _libtarn, errors
from ._libtarn import UNKNOWN, last_error, library
from ._task_types import Code, Node, Outcome, Part, Space, SpaceInfo, State, Stats, Status
from .errors import Error, make

__all__ = [
    "Code",
    "Connection",
    "Memory",
    "Node",
    "Outcome",
    "Part",
    "Place",
    "Space",
    "SpaceInfo",
    "State",
    "Stats",
    "Status",
    "connect",
    "library",
    "task",
]

Kind = Literal["nothing", "copy", "move", "remove"]
Verify = Literal["copy", "none", "readback"]

_KINDS: dict[Any, type[Error]] = {
    Code.INVALID: errors.InvalidError,
    Code.BUSY: errors.BusyError,
    Code.NOTFOUND: errors.NotFoundError,
    Code.DENIED: errors.DeniedError,
    Code.NOSPACE: errors.NoSpaceError,
    Code.QUOTA: errors.NoSpaceError,
    Code.EXISTS: errors.ExistsError,
    Code.CORRUPT: errors.CorruptError,
    Code.CANCELLED: errors.CancelledError,
    Code.UNSUPPORTED: errors.UnsupportedError,
    Code.LOST: errors.LostError,
    Code.TIMEDOUT: errors.TimedOutError,
    Code.INTERNAL: errors.InternalError,
}


class Memory:
    """Memory that tasks read and write; made by `Connection.memory`.

    Attributes
    ----------
    data : mmap.mmap
        The memory, writable; `numpy.frombuffer(memory.data)` is an array of it.
    length : int
        Its bytes.
    region : int
        Its number at tarnd.

    Examples
    --------
    >>> node = connect()
    >>> memory = node.memory(4096)
    >>> memory.data[:5] = b"hello"
    >>> saved = node.copy(memory.part(0, 5), Space("fast", "doc-part"))
    >>> node.wait(saved).bytes
    5
    >>> memory.close()
    >>> node.wait(node.remove(Space("fast", "doc-part"))).code.name
    'OK'
    """

    def __init__(self, node: Connection, length: int) -> None:
        self._node = node
        self.length = length
        fd = os.memfd_create("tarn")
        try:
            os.truncate(fd, length)
            self.data = mmap.mmap(fd, length)
            region = ctypes.c_uint32()
            size = ctypes.c_uint64(length)
            register = library().tarn_memory_register
            _check(register(node._handle, fd, size, ctypes.byref(region)))
            self.region: int = region.value
        finally:
            os.close(fd)

    def part(self, offset: int = 0, length: int | None = None) -> Part:
        """A piece of it for a task: `length` bytes from byte `offset` on, or all the rest."""
        return Part(self.region, offset, self.length - offset if length is None else length)

    def close(self) -> None:
        """Takes the memory back from tarnd; `data` stays usable."""
        _check(library().tarn_memory_unregister(self._node._handle, ctypes.c_uint32(self.region)))


Place = Union[str, bytes, "os.PathLike[str]", Space, Node, Memory, Part]
"""A path or URL outside (`file://`, `s3://`), a file of a dataspace, or memory."""


def _error(code: int, text: str) -> Error:
    return make(_KINDS, Code(code), text)


def _check(code: int) -> None:
    if code:
        raise _error(code, last_error())


def _seconds(nanoseconds: int) -> float | None:
    return None if nanoseconds == UNKNOWN else nanoseconds / 1e9


def _plain(value: bytes) -> bytes:
    """Bytes for C, where a NUL would end them."""
    if 0 in value:
        raise ValueError(f"{value!r} holds a NUL byte, which no name or path can have")
    return value


def _bytes(path: str | bytes | os.PathLike[str]) -> bytes:
    return _plain(path if isinstance(path, bytes) else os.fsencode(path))


def _name(name: str) -> bytes:
    return _plain(name.encode())


def _number(value: int, what: str, most: int = UNKNOWN) -> int:
    """A number for C, which would keep the low bits of one that does not fit."""
    if not 0 <= value <= most:
        raise ValueError(f"{what} is {value}: it must be 0 to {most}")
    return value


def _place(place: Place | None) -> _libtarn.Place:
    if place is None:
        return _libtarn.Place()
    if isinstance(place, Memory):
        place = place.part()
    if isinstance(place, Part):
        return _libtarn.Place(
            kind=2, region=place.region, offset=place.offset, length=place.length
        )
    if isinstance(place, Space):
        return _libtarn.Place(kind=1, space=_name(place.name), path=_bytes(place.path))
    if isinstance(place, Node):
        node, space = _name(place.node), _name(place.space)
        return _libtarn.Place(kind=3, node=node, space=space, path=_bytes(place.path))
    return _libtarn.Place(kind=4, path=_bytes(place))


def task(
    kind: Kind,
    source: Place | None = None,
    dest: Place | None = None,
    *,
    verify: Verify = "copy",
    durable: bool = False,
    replace: bool = False,
    priority: int = 100,
    after: Iterable[int] = (),
    deadline: float | None = None,
    rate: int = 0,
) -> _libtarn.Task:
    """A task for `Connection.submit`.

    Parameters
    ----------
    kind : {"nothing", "copy", "move", "remove"}
        A move verifies the copy before it removes the source.
    source, dest : Place, optional
        From where and to where; `remove` and `nothing` have no destination.
    verify : {"copy", "none", "readback"}
        Whether what was read is hashed and compared, nothing is, or what was written is read
        again too.
    durable : bool
        Whether the task survives a restart of tarnd.
    replace : bool
        Whether a destination that exists is replaced.
    priority : int
        0 to 255; the higher comes first.
    after : iterable of int
        Tasks that must be done before.
    deadline : float, optional
        Seconds from its submission.
    rate : int
        Bytes a second at most; 0 for no limit.

    Raises
    ------
    ValueError
        A number is out of range, or a name holds a NUL byte.

    Examples
    --------
    The second task starts when the first one is done:

    >>> with connect() as node:
    ...     first, = node.submit([task("nothing", priority=200)])
    ...     second, = node.submit([task("nothing", after=[first], deadline=60.0)])
    ...     [one.code.name for one in node.outcomes([first, second])]
    ['OK', 'OK']
    """
    first = list(after)
    made = _libtarn.Task()
    library().tarn_task_init(ctypes.byref(made))
    made.kind = ("nothing", "copy", "move", "remove").index(kind)
    made.verify = ("copy", "none", "readback").index(verify)
    made.flags = (1 if durable else 0) | (2 if replace else 0)
    made.priority = _number(priority, "priority", 255)
    made.after_count = len(first)
    made.after = (ctypes.c_uint64 * len(first))(*first)
    if deadline is not None:
        made.deadline_ns = max(1, _number(int(deadline * 1e9), "deadline (in ns)"))
    made.rate = _number(rate, "rate")
    made.source = _place(source)
    made.dest = _place(dest)
    return made


class Connection:
    """A connection to tarnd, made by `connect`. Threads may share it.

    A `with` block closes it at its end, while its tasks continue.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> source = pathlib.Path(folder.name, "mesh")
    >>> _ = source.write_bytes(bytes(1000))
    >>> with connect() as node:
    ...     copied = node.copy(source, Space("fast", "doc-mesh"), durable=True)
    ...     print(node.wait(copied, timeout=60).bytes)
    ...     moved = node.move(Space("fast", "doc-mesh"), source.with_name("back"))
    ...     print(node.wait(moved).code.name, node.status([moved])[0].state.name)
    1000
    OK DONE
    >>> source.with_name("back").stat().st_size
    1000
    >>> folder.cleanup()
    """

    def __init__(
        self, socket: str | bytes | os.PathLike[str] | None = None, job: int | None = None
    ) -> None:
        self._handle = ctypes.c_void_p()
        path = None if socket is None else _bytes(socket)
        handle = ctypes.byref(self._handle)
        if job is None:
            _check(library().tarn_connect(path, handle))
        else:
            _check(library().tarn_connect_job(path, ctypes.c_uint64(job), handle))

    def close(self) -> None:
        """Closes; calls after this one raise `Error`."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        library().tarn_close(handle)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def submit(self, tasks: Iterable[_libtarn.Task]) -> list[int | Error]:
        """Submits tasks that were made by `task`.

        Returns
        -------
        list of int or Error
            In their order: the id of each task, or the error of one that was refused.

        Raises
        ------
        Error
            None of them was taken: the queue is full (`BusyError`), or tarnd is gone.

        Examples
        --------
        >>> with connect() as node:
        ...     ids = node.submit(task("nothing") for _ in range(3))
        ...     len(node.outcomes(ids))
        3
        """
        wanted = list(tasks)
        array = (_libtarn.Task * len(wanted))(*wanted)
        ids = (ctypes.c_uint64 * len(wanted))()
        codes = (ctypes.c_int32 * len(wanted))()
        count = ctypes.c_size_t(len(wanted))
        code = library().tarn_submit(self._handle, array, count, ids, codes)
        text = last_error() if code else ""
        if code and not any(ids):
            raise _error(code, text)
        return [_error(why, text) if why else taken for taken, why in zip(ids, codes)]

    def _one(
        self, kind: Kind, source: Place, dest: Place | None, options: dict[str, Any]
    ) -> int:
        taken = self.submit([task(kind, source, dest, **options)])[0]
        if isinstance(taken, Error):
            raise taken
        return taken

    def copy(self, source: Place, dest: Place, **options: Any) -> int:
        """Submits a copy from `source` to `dest`, with options of `task`; returns the task's id.

        Raises
        ------
        Error
            It was refused, such as `DeniedError`, `NoSpaceError` or `BusyError`.
        """
        return self._one("copy", source, dest, options)

    def move(self, source: Place, dest: Place, **options: Any) -> int:
        """As `copy`; then the copy is read again, and the source removed. Returns the task's id."""
        return self._one("move", source, dest, options)

    def remove(self, place: Place, **options: Any) -> int:
        """Submits the removal of a file or a folder; errors as of `copy`. Returns the task's id."""
        return self._one("remove", place, None, options)

    def outcomes(
        self, ids: Iterable[int], any: bool = False, timeout: float | None = None
    ) -> list[Outcome]:
        """Waits for tasks.

        Parameters
        ----------
        ids : iterable of int
            The tasks.
        any : bool
            Whether one of them is enough.
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        list of Outcome
            Of those that have ended; failed ones too.
        """
        wanted = list(ids)
        found = (_libtarn.Outcome * len(wanted))()
        count = ctypes.c_size_t()
        nanoseconds = -1 if timeout is None else max(0, int(timeout * 1e9))
        code = library().tarn_wait(
            self._handle,
            (ctypes.c_uint64 * len(wanted))(*wanted),
            ctypes.c_size_t(len(wanted)),
            int(any),
            ctypes.c_int64(nanoseconds),
            found,
            ctypes.byref(count),
        )
        if code != Code.TIMEDOUT:
            _check(code)
        return [
            Outcome(
                one.id,
                Code(one.code),
                one.text.decode(errors="replace"),
                one.bytes,
                one.nanoseconds / 1e9,
                bool(one.late),
                bytes(one.checksum) if one.has_checksum else None,
            )
            for one in found[: count.value]
        ]

    def wait(self, id: int, timeout: float | None = None) -> Outcome:
        """Waits for one task, for `timeout` seconds at most.

        Raises
        ------
        Error
            As the task has failed; `NotFoundError` if tarnd does not know it (any more),
            `TimedOutError` if it has not ended.
        """
        found = self.outcomes([id], timeout=timeout)
        if not found:
            if self.status([id])[0].state == State.UNKNOWN:
                raise _error(Code.NOTFOUND, f"task {id} is not known (any more)")
            raise _error(Code.TIMEDOUT, f"task {id} has not ended in {timeout} s")
        if found[0].code:
            raise _error(found[0].code, found[0].text)
        return found[0]

    def status(self, ids: Iterable[int]) -> list[Status]:
        """How far tasks are, in the order of `ids`; of one that is not known `State.UNKNOWN`.

        Examples
        --------
        >>> with connect() as node:
        ...     done = node.submit([task("nothing")])
        ...     _ = node.outcomes(done)
        ...     [one.state.name for one in node.status([*done, 2**60])]
        ['DONE', 'UNKNOWN']
        """
        wanted = list(ids)
        array = (ctypes.c_uint64 * len(wanted))(*wanted)
        found = (_libtarn.Status * len(wanted))()
        count = ctypes.c_size_t(len(wanted))
        _check(library().tarn_status(self._handle, array, count, found))
        return [
            Status(
                one.id,
                State(one.state),
                one.done,
                None if one.all == UNKNOWN else one.all,
                _seconds(one.left),
                one.before,
            )
            for one in found
        ]

    def _each(self, call: Callable[..., int], ids: Iterable[int]) -> list[Code]:
        wanted = list(ids)
        array = (ctypes.c_uint64 * len(wanted))(*wanted)
        codes = (ctypes.c_int32 * len(wanted))()
        _check(call(self._handle, array, ctypes.c_size_t(len(wanted)), codes))
        return [Code(code) for code in codes]

    def cancel(self, ids: Iterable[int]) -> list[Code]:
        """Cancels tasks: they end, and can be waited for.

        Returns
        -------
        list of Code
            For each task `Code.OK`, `Code.NOTFOUND`, or `Code.EXISTS` for one that has ended.

        Examples
        --------
        >>> with connect() as node:
        ...     [one.name for one in node.cancel([2**60])]
        ['NOTFOUND']
        """
        return self._each(library().tarn_cancel, ids)

    def pause(self, ids: Iterable[int]) -> list[Code]:
        """Pauses tasks: they do not start, or stop where they are. Codes as of `cancel`."""
        return self._each(library().tarn_pause, ids)

    def resume(self, ids: Iterable[int]) -> list[Code]:
        """Resumes paused tasks from where they were. Codes as of `cancel`."""
        return self._each(library().tarn_resume, ids)

    def pause_job(self, job: int, on: bool = True) -> None:
        """Pauses all tasks of a job, its later ones too; with ``on=False`` resumes them."""
        _check(library().tarn_job_pause(self._handle, ctypes.c_uint64(job), ctypes.c_int(on)))

    def pause_all(self, on: bool = True) -> None:
        """Makes tarnd start no task any more (running tasks end), or start tasks again."""
        _check(library().tarn_pause_all(self._handle, ctypes.c_int(on)))

    def memory(self, length: int) -> Memory:
        """Memory of `length` bytes that tasks can read and write."""
        return Memory(self, length)

    def spaces(self) -> list[SpaceInfo]:
        """The dataspaces of this node, with their sizes in bytes.

        Examples
        --------
        >>> with connect() as node:
        ...     space = next(one for one in node.spaces() if one.name == "fast")
        ...     space.used <= space.capacity, space.writable
        (True, True)
        """
        most = 1024
        found = (_libtarn.Space * most)()
        count = ctypes.c_size_t(most)
        _check(library().tarn_spaces(self._handle, found, ctypes.byref(count)))
        return [
            SpaceInfo(
                one.name.decode(),
                one.capacity,
                one.quota,
                one.used,
                one.held,
                one.own,
                bool(one.readable),
                bool(one.writable),
                bool(one.manageable),
            )
            for one in found[: count.value]
        ]

    def make_space(
        self,
        name: str,
        folder: str | bytes | os.PathLike[str],
        capacity: int,
        quota: int = 0,
    ) -> None:
        """Makes a dataspace of a folder.

        Parameters
        ----------
        name : str
            Its name, for `Space`.
        folder : path
            The folder; it exists.
        capacity, quota : int
            Bytes of all users together, and of each one; a quota of 0 is none.

        Raises
        ------
        DeniedError
            This user does not run tarnd.
        ExistsError, NotFoundError, InvalidError
            The name is taken, there is no such folder, or it cannot be a dataspace.
        """
        _check(
            library().tarn_space_make(
                self._handle,
                _name(name),
                _bytes(folder),
                ctypes.c_uint64(_number(capacity, "capacity")),
                ctypes.c_uint64(_number(quota, "quota")),
            )
        )

    def remove_space(self, name: str) -> None:
        """Forgets a dataspace; its files stay."""
        _check(library().tarn_space_remove(self._handle, _name(name)))

    def stats(self) -> Stats:
        """Counts of tarnd: tasks, bytes moved, and the seconds that are left to do.

        Examples
        --------
        >>> with connect() as node:
        ...     node.stats().done > 0
        True
        """
        found = _libtarn.Stats()
        _check(library().tarn_stats(self._handle, ctypes.byref(found)))
        counts = (found.waiting, found.queued, found.running, found.done, found.failed)
        return Stats(*counts, found.bytes, _seconds(found.left))


def connect(
    socket: str | bytes | os.PathLike[str] | None = None, job: int | None = None
) -> Connection:
    """Connects to tarnd; waits up to 5 s for one that is starting, if the socket's folder exists.

    Parameters
    ----------
    socket : path, optional
        Its socket; without one that of $TARN_SOCKET.
    job : int, optional
        The job for which tasks are submitted, of those that tarnd knows.

    Raises
    ------
    Error
        Nobody listens there, or not for this user.
    OSError
        libtarn cannot be loaded.

    Examples
    --------
    >>> with connect() as node:                 # the tarnd that $TARN_SOCKET names
    ...     type(node).__name__
    'Connection'
    """
    return Connection(socket, job)
