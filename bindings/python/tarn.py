"""tarn: what a program can ask of the tarnd of its node.

    import tarn
    with tarn.connect() as node:
        task = node.copy("/lustre/in.dat", tarn.Space("fast", "in.dat"))
        ...                                  # compute meanwhile
        node.wait(task)

Speaks through libtarn (no other package is needed). docs/guide/tasks.md explains the words.
"""

import collections
import ctypes
import enum
import mmap
import os

_UNKNOWN = 2**64 - 1


class Error(Exception):
    """Why something did not happen: `code` (one of the numbers of tarn.h) and a text."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = Code(code)


class Code(enum.IntEnum):
    """The codes of tarn.h."""

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
    """Where a task stands."""

    UNKNOWN = 0
    WAITING = 1
    QUEUED = 2
    RUNNING = 3
    DONE = 4
    FAILED = 5
    PAUSED = 6


Space = collections.namedtuple("Space", "name path", defaults=[""])
Space.__doc__ = "A file or folder of a dataspace."
Node = collections.namedtuple("Node", "node space path")
Node.__doc__ = "A file or folder of a dataspace of another node."
Outcome = collections.namedtuple("Outcome", "id code text bytes seconds late checksum")
Outcome.__doc__ = "How a task ended; `code` is Code.OK when it was done."
Status = collections.namedtuple("Status", "id state done all left before")
Status.__doc__ = "How far a task is: bytes, and seconds left; None for what is not known."
SpaceInfo = collections.namedtuple("SpaceInfo", "name capacity quota used reserved own readable writable manageable")
Stats = collections.namedtuple("Stats", "waiting queued running done failed bytes left")


class _Place(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("region", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("node", ctypes.c_char_p),
        ("space", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
    ]


class _Task(ctypes.Structure):
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
        ("source", _Place),
        ("dest", _Place),
    ]


class _Outcome(ctypes.Structure):
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


class _Status(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint64),
        ("done", ctypes.c_uint64),
        ("all", ctypes.c_uint64),
        ("left", ctypes.c_uint64),
        ("state", ctypes.c_int32),
        ("before", ctypes.c_uint32),
    ]


class _Space(ctypes.Structure):
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


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Stats._fields]


_library = None


def _load():
    """libtarn: the one that $TARN_LIBRARY names, or the system's."""
    global _library
    if _library is None:
        path = os.environ.get("TARN_LIBRARY", "libtarn.so")
        try:
            library = ctypes.CDLL(path)
        except OSError as e:
            raise OSError(
                f"cannot load libtarn: {e}; set TARN_LIBRARY to the path of libtarn.so (`make install` puts it into lib/)"
            ) from e
        library.tarn_last_error.restype = ctypes.c_char_p
        for name in ("tarn_close", "tarn_task_init"):
            getattr(library, name).restype = None
        _library = library
    return _library


def _check(code):
    if code:
        raise Error(code, _load().tarn_last_error().decode(errors="replace"))


def _seconds(nanoseconds):
    return None if nanoseconds == _UNKNOWN else nanoseconds / 1e9


class Memory:
    """Memory that tasks read and write; `data` is a writable buffer over it (numpy.frombuffer takes it)."""

    def __init__(self, node, length):
        self._node = node
        self.length = length
        fd = os.memfd_create("tarn")
        try:
            os.truncate(fd, length)
            self.data = mmap.mmap(fd, length)
            region = ctypes.c_uint32()
            _check(_load().tarn_memory_register(node._handle, fd, ctypes.c_uint64(length), ctypes.byref(region)))
            self.region = region.value
        finally:
            os.close(fd)

    def part(self, offset=0, length=None):
        """A piece of it as a place."""
        return _Piece(self.region, offset, self.length - offset if length is None else length)

    def close(self):
        """Takes it back from tarnd; the buffer stays."""
        _check(_load().tarn_memory_unregister(self._node._handle, ctypes.c_uint32(self.region)))


_Piece = collections.namedtuple("_Piece", "region offset length")


def _plain(value):
    """Bytes for C, where a NUL would end them."""
    if 0 in value:
        raise ValueError(f"{value!r} holds a NUL byte, which no name or path can have")
    return value


def _bytes(path):
    return _plain(path if isinstance(path, bytes) else os.fsencode(path))


def _name(name):
    return _plain(name.encode())


def _number(value, what, most=2**64 - 1):
    """A number for C, which would take what is left of one that does not fit."""
    if not 0 <= value <= most:
        raise ValueError(f"{what} is {value}: it must be 0 to {most}")
    return value


def _place(place):
    if place is None:
        return _Place()
    if isinstance(place, Memory):
        place = place.part()
    if isinstance(place, _Piece):
        return _Place(kind=2, region=place.region, offset=place.offset, length=place.length)
    if isinstance(place, Space):
        return _Place(kind=1, space=_name(place.name), path=_bytes(place.path))
    if isinstance(place, Node):
        return _Place(kind=3, node=_name(place.node), space=_name(place.space), path=_bytes(place.path))
    return _Place(kind=4, path=_bytes(place))


def task(kind, source=None, dest=None, *, verify="copy", durable=False, replace=False, priority=100, after=(),
         deadline=None, rate=0):
    """A task for Connection.submit. `kind` is nothing, copy, move or remove; a place is a path, a file:// or s3:// URL (outside), a
    Space, a Node or Memory. `deadline` in seconds from submission, `rate` in bytes a second."""
    after = list(after)
    made = _Task()
    _load().tarn_task_init(ctypes.byref(made))
    made.kind = ("nothing", "copy", "move", "remove").index(kind)
    made.verify = ("copy", "none", "readback").index(verify)
    made.flags = (1 if durable else 0) | (2 if replace else 0)
    made.priority = _number(priority, "priority", 255)
    made.after_count = len(after)
    made.after = (ctypes.c_uint64 * len(after))(*after)
    made.deadline_ns = 0 if deadline is None else max(1, _number(int(deadline * 1e9), "deadline (in ns)"))
    made.rate = _number(rate, "rate")
    made.source = _place(source)
    made.dest = _place(dest)
    return made


class Connection:
    """A connection to tarnd; threads may share it. A context manager: closes at the end, while tasks continue."""

    def __init__(self, socket=None, job=None):
        self._handle = ctypes.c_void_p()
        path = None if socket is None else _bytes(socket)
        library = _load()
        if job is None:
            _check(library.tarn_connect(path, ctypes.byref(self._handle)))
        else:
            _check(library.tarn_connect_job(path, ctypes.c_uint64(job), ctypes.byref(self._handle)))

    def close(self):
        """Closes; calls after this one fail."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _load().tarn_close(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def submit(self, tasks):
        """Submits tasks made by task(). Returns their ids; one that was refused is an Error in its place."""
        tasks = list(tasks)
        array = (_Task * len(tasks))(*tasks)
        ids = (ctypes.c_uint64 * len(tasks))()
        codes = (ctypes.c_int32 * len(tasks))()
        code = _load().tarn_submit(self._handle, array, ctypes.c_size_t(len(tasks)), ids, codes)
        text = _load().tarn_last_error().decode(errors="replace") if code else ""
        if code and not any(ids):
            raise Error(code, text)
        return [Error(why, text) if why else task for task, why in zip(ids, codes)]

    def _one(self, *args, **options):
        return self.submit([task(*args, **options)])[0]

    def copy(self, source, dest, **options):
        """Copies; returns the task's id."""
        return self._one("copy", source, dest, **options)

    def move(self, source, dest, **options):
        """Copies, reads the copy again, then removes the source; returns the task's id."""
        return self._one("move", source, dest, **options)

    def remove(self, place, **options):
        """Removes; returns the task's id."""
        return self._one("remove", place, **options)

    def outcomes(self, ids, any=False, timeout=None):
        """Waits until all (or any) of the tasks have ended or `timeout` seconds are over; returns what has ended."""
        ids = list(ids)
        array = (ctypes.c_uint64 * len(ids))(*ids)
        found = (_Outcome * len(ids))()
        count = ctypes.c_size_t()
        nanoseconds = -1 if timeout is None else max(0, int(timeout * 1e9))
        code = _load().tarn_wait(
            self._handle, array, ctypes.c_size_t(len(ids)), int(any), ctypes.c_int64(nanoseconds), found,
            ctypes.byref(count))
        if code != Code.TIMEDOUT:
            _check(code)
        return [
            Outcome(o.id, Code(o.code), o.text.decode(errors="replace"), o.bytes, o.nanoseconds / 1e9, bool(o.late),
                    bytes(o.checksum) if o.has_checksum else None)
            for o in found[:count.value]
        ]

    def wait(self, id, timeout=None):
        """Waits for one task; returns its outcome. A task that has failed raises its Error."""
        found = self.outcomes([id], timeout=timeout)
        if not found:
            if self.status([id])[0].state == State.UNKNOWN:
                raise Error(Code.NOTFOUND, f"task {id} is not known (any more)")
            raise Error(Code.TIMEDOUT, f"task {id} has not ended in {timeout} s")
        if found[0].code:
            raise Error(found[0].code, found[0].text)
        return found[0]

    def status(self, ids):
        """How far tasks are."""
        ids = list(ids)
        array = (ctypes.c_uint64 * len(ids))(*ids)
        found = (_Status * len(ids))()
        _check(_load().tarn_status(self._handle, array, ctypes.c_size_t(len(ids)), found))
        return [
            Status(s.id, State(s.state), s.done, None if s.all == _UNKNOWN else s.all, _seconds(s.left), s.before)
            for s in found
        ]

    def cancel(self, ids):
        """Asks for tasks to be cancelled. For each: OK, NOTFOUND, or EXISTS for one that is over already."""
        ids = list(ids)
        array = (ctypes.c_uint64 * len(ids))(*ids)
        codes = (ctypes.c_int32 * len(ids))()
        _check(_load().tarn_cancel(self._handle, array, ctypes.c_size_t(len(ids)), codes))
        return [Code(code) for code in codes]

    def _pause(self, call, ids):
        ids = list(ids)
        array = (ctypes.c_uint64 * len(ids))(*ids)
        codes = (ctypes.c_int32 * len(ids))()
        _check(call(self._handle, array, ctypes.c_size_t(len(ids)), codes))
        return [Code(code) for code in codes]

    def pause(self, ids):
        """Pauses tasks: they do not start, or stop where they are. For each: OK, NOTFOUND, or EXISTS for one that is over."""
        return self._pause(_load().tarn_pause, ids)

    def resume(self, ids):
        """Resumes paused tasks from where they were. The same answers."""
        return self._pause(_load().tarn_resume, ids)

    def pause_job(self, job, on=True):
        """Pauses all tasks of a job, those that it submits later too; or (`on=False`) resumes them."""
        _check(_load().tarn_job_pause(self._handle, ctypes.c_uint64(job), ctypes.c_int(on)))

    def pause_all(self, on=True):
        """Lets tarnd start nothing any more (running tasks end), or start tasks again."""
        _check(_load().tarn_pause_all(self._handle, ctypes.c_int(on)))

    def memory(self, length):
        """Memory of so many bytes that tasks can read and write."""
        return Memory(self, length)

    def spaces(self):
        """The dataspaces of this node."""
        room = 1024
        found = (_Space * room)()
        count = ctypes.c_size_t(room)
        _check(_load().tarn_spaces(self._handle, found, ctypes.byref(count)))
        return [
            SpaceInfo(s.name.decode(), s.capacity, s.quota, s.used, s.held, s.own, bool(s.readable), bool(s.writable),
                      bool(s.manageable))
            for s in found[:count.value]
        ]

    def make_space(self, name, folder, capacity, quota=0):
        """Makes a dataspace of a folder; sizes in bytes."""
        _check(_load().tarn_space_make(
            self._handle, _name(name), _bytes(folder), ctypes.c_uint64(_number(capacity, "capacity")),
            ctypes.c_uint64(_number(quota, "quota"))))

    def remove_space(self, name):
        """Forgets a dataspace; its files stay."""
        _check(_load().tarn_space_remove(self._handle, _name(name)))

    def stats(self):
        """Counts of tarnd; `left` in seconds."""
        found = _Stats()
        _check(_load().tarn_stats(self._handle, ctypes.byref(found)))
        values = [getattr(found, name) for name in Stats._fields]
        return Stats(*values[:-1], _seconds(values[-1]))


def connect(socket=None, job=None):
    """Connects to the tarnd at `socket`, or to that of $TARN_SOCKET; waits up to 5 s for one that is starting."""
    return Connection(socket, job)
