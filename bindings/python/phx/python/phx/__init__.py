"""Checkpoints of numpy arrays and buffers at the speed of a node's memory: docs/guide/checkpoints.md explains the words.

    import phx
    with phx.Checkpoints(tier="/mnt/pmem") as ck:
        field = ck.zeros("field", (1000, 1000))
        step = ck.zeros("step", (), "i8")
        ck.restart()                         # None at the first start
        while step[()] < 100:
            step += 1
            field += 0.5                     # compute in place
            ck.commit()

An array keeps its memory: it can be used after its object is destroyed and after the checkpoints are closed. While one thread is
in `commit` or `restart`, other threads run, but must not write to (in `restart`: use) the objects: what they write meanwhile may or may
not be in the version. A second call of the same checkpoints meanwhile raises `BusyError`. A forked child cannot use its parent's.
"""

import collections
import dataclasses
import enum
import warnings

from . import _phx, objects

ALL = 2**64 - 1
"""As `staging`: all of a checkpoint may be staged."""

Objects = objects.Objects


class Code(enum.IntEnum):
    """Kinds of errors; the numbers are those of phx.h."""

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


class Error(Exception):
    """Why something was not done, in words, and what to do; its kind is `code`."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = Code(code)

    def __reduce__(self):
        return type(self), (self.code, str(self))


class InvalidError(Error, ValueError):
    """An argument makes no sense."""


class BusyError(Error):
    """Another thread is in a call, or another program has this run's name."""


class NotFoundError(Error, LookupError):
    """There is no such object or version."""


class ExistsError(Error):
    """The key is taken."""


class NoSpaceError(Error):
    """There is no space on the persistent tier."""


class NoMemoryError(Error, MemoryError):
    """There is not enough memory."""


class CorruptError(Error):
    """No undamaged copy is left of what was wanted."""


class TimedOutError(Error, TimeoutError):
    """The time was over before that."""


class LostError(Error):
    """Another rank is gone."""


class ClosedError(Error):
    """The checkpoints were closed."""


_ERRORS = {
    Code.INVALID: InvalidError,
    Code.BUSY: BusyError,
    Code.NOTFOUND: NotFoundError,
    Code.EXISTS: ExistsError,
    Code.NOSPACE: NoSpaceError,
    Code.NOMEM: NoMemoryError,
    Code.CORRUPT: CorruptError,
    Code.TIMEDOUT: TimedOutError,
    Code.LOST: LostError,
    Code.INIT: ClosedError,
}


def _error(code, text):
    return _ERRORS.get(code, Error)(code, text)


class DegradedWarning(UserWarning):
    """A version has fewer copies than were asked for."""


class Level(enum.IntEnum):
    """What a version survives: the process; the loss of power too; of the node too; of all nodes."""

    COMMITTED = 0
    DURABLE = 1
    REPLICATED = 2
    FLUSHED = 3


class Version(collections.namedtuple("Version", ["generation", "number"])):
    """A version: the number of the program start that made it, and its number within that start."""

    __slots__ = ()

    def __str__(self):
        return f"{self.generation}.{self.number}"


VersionInfo = collections.namedtuple("VersionInfo", ["version", "bytes", "ranks", "level"])
VersionInfo.__doc__ = "A version that can be had: bytes of this rank's objects, the ranks that wrote it, the least level of all ranks."


@dataclasses.dataclass(frozen=True)
class Stats:
    """What this rank did since it began: bytes, nanoseconds, bytes a second. phx.h explains each."""

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


@dataclasses.dataclass(frozen=True)
class _Whole:
    """An object that is not divided."""

    kind: int

    def said(self, shape):
        return self.kind, [], 0


OWN = _Whole(0)
"""It goes back to the rank that it came from: the default."""

REPLICATED = _Whole(1)
"""It is the same on all ranks."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A box of an array that all ranks have together, by dimension: what the whole has, where this rank's box begins (its ghosts included),
    and how many at each end are copies of a neighbour's. The box has the shape of the object."""

    all: tuple
    first: tuple
    ghost: tuple = ()

    def said(self, shape):
        ghost = self.ghost or (0,) * len(shape)
        if not len(shape) == len(self.all) == len(self.first) == len(ghost):
            raise InvalidError(Code.INVALID, f"{self} does not fit an object of shape {shape}: give a number for each dimension")
        return 2, list(zip(self.all, self.first, shape, ghost)), 0


@dataclasses.dataclass(frozen=True)
class Irregular:
    """Some rows of `row` bytes, one rank's after another's."""

    row: int

    def said(self, shape):
        return 3, [], self.row


def _said(shape, *, transient=False, precopy=None, versions=1, persistence=Level.COMMITTED, replicas=None):
    return {
        "transient": transient,
        "precopy": precopy,
        "versions": versions,
        "persistence": persistence,
        "replicas": replicas,
        "shape": shape,
    }


class Checkpoints:
    """The checkpoints of one rank of a program. All ranks make them; what is not said is as the environment says (TARN_PHX_RUN, _TIER,
    _MEMORY, _MEET, _KEY, _PROFILE, _EXTERNAL, _FLUSH_EVERY, _FLUSH_RATE, _TRANSPORT), or as it is best.

    `staging`: bytes that may be staged (`phx.ALL`: all); `timeout`: the longest wait for other ranks, in seconds (60); `meet`: HOST:PORT of
    rank 0, where ranks are on several nodes, and `key` then a file of 64 hexadecimal digits; `helper=False`: no thread in the
    background; `processors`: those it may use; `same_node`: a buddy on the same node will do (for tests). `replicas`: copies of what is
    staged (one, where ranks are on several nodes). `copies` of all of a version on other nodes, or sets of `parity` ranks of which any
    one can be made again, for every `replicate_every`th version.
    `transport`: how bytes go between nodes, "tcp", "libfabric:PROVIDER", or "libfabric" for the best that there is; where that cannot be
    had they go by TCP, and the next `commit` warns.
    `external`: a folder on a store that outlives the nodes, to which every `flush_every`-th version goes, `flush_rate` bytes a second.
    `mprotect`: what is copied ahead is found by a handler of SIGSEGV, as PHX_MPROTECT in phx_init(3) says; reading a file into an array
    (`readinto`) can fail then. `encrypt`: what objects hold is encrypted wherever versions lie, with the key that `tarn key new` makes.

    A `with` block that ends closes them, and what is staged is then on the persistent tier. If it is left by an exception, they end as if
    the process was killed: no other rank is waited for, and the next start has what was committed.
    """

    def __init__(
        self,
        *,
        tier=None,
        run=None,
        rank=0,
        ranks=1,
        replicas=None,
        copies=0,
        parity=0,
        replicate_every=1,
        staging=None,
        memory=None,
        meet=None,
        key=None,
        profile=None,
        timeout=None,
        helper=True,
        processors=(),
        same_node=False,
        mprotect=False,
        encrypt=False,
        external=None,
        flush_every=None,
        flush_rate=None,
        transport=None,
    ):
        self._session = _phx.Session(
            {
                "tier": tier,
                "run": run,
                "rank": rank,
                "ranks": ranks,
                "replicas": replicas,
                "copies": copies,
                "parity": parity,
                "replicate_every": replicate_every,
                "staging": staging,
                "memory": memory,
                "meet": meet,
                "key": key,
                "profile": profile,
                "timeout": timeout,
                "helper": helper,
                "processors": list(processors),
                "same_node": same_node,
                "mprotect": mprotect,
                "encrypt": encrypt,
                "external": external,
                "flush_every": flush_every,
                "flush_rate": flush_rate,
                "transport": transport,
            }
        )

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._session.close(kind is None)

    def close(self):
        """Ends: what is staged is de-staged. All ranks call it. Arrays stay usable."""
        self._session.close(True)

    def zeros(self, key, shape, dtype=float, *, shape_of=OWN, **properties):
        """A numpy array of zeros that is an object; its memory lives as long as the array or a view of it. `shape_of` says how it is
        a part of what all ranks have together: OWN, REPLICATED, a Block or Irregular rows. Properties:

        `transient=True`: it is not in checkpoints. `precopy`: it is copied ahead of commits where that pays (None), always (True), or never
        (False: devices or other processes write to it). `versions`: how many are kept (1). `persistence`: the Level that a version has
        reached when `commit` returns (Level.COMMITTED); from DURABLE on nothing is staged, and if it cannot reach more in time, `commit`
        warns. `replicas`: copies of what is staged, each on another node, at most 3 (None: as Checkpoints was told). A version is whole or
        none: of the last three the most that an object asks for counts, as long as that object is there."""
        import numpy

        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise InvalidError(Code.INVALID, f"object {key!r} would hold Python objects: give it a type of numbers, not {dtype}")
        shape = tuple(shape) if numpy.iterable(shape) else (shape,)
        count = 1
        for length in shape:
            count *= length
        said = _said(shape_of.said(shape), **properties)
        region = self._session.create(key, count * dtype.itemsize, dtype.itemsize, said)
        return numpy.ndarray(shape, dtype, buffer=region)

    def create(self, key, size, unit=1, *, shape_of=OWN, **properties):
        """The same without numpy: a view of `size` zero bytes, of elements of `unit` bytes."""
        said = _said(shape_of.said((size // max(unit, 1),)), **properties)
        return memoryview(self._session.create(key, size, unit, said))

    def register(self, key, array, *, shape_of=OWN, **properties):
        """Makes an object of memory that the program has: a numpy array, a bytearray, anything with a buffer that can be written and is
        contiguous in C's order (of a PyTorch tensor on the CPU, `tensor.numpy()`). The buffer is held until the object is destroyed."""
        try:
            view = memoryview(array)
        except (TypeError, ValueError) as e:
            text = f"the memory for object {key!r} gives no buffer ({e}): register a view of it as numbers"
            raise InvalidError(Code.INVALID, text) from e
        said = _said(shape_of.said(view.shape), **properties)
        self._session.register(key, view, said)

    def destroy(self, key):
        """Forgets an object, and frees its memory. Versions that have it keep it."""
        self._session.destroy(key)

    def restart(self, version=None):
        """Fills all objects from a version, or from the newest that all ranks can have, and returns which; None at a fresh start. All
        ranks call it, with the same objects, before their first commit."""
        restored = self._session.restart(version)
        return None if restored is None else Version(*restored)

    def commit(self):
        """Keeps the state of all objects as a new version. All ranks call it; none waits for the others except for space, and for the
        persistence that objects ask for. Warns with DegradedWarning when it has fewer copies than were asked for."""
        generation, number, degraded = self._session.commit()
        if degraded is not None:
            warnings.warn(degraded, DegradedWarning, stacklevel=2)
        return Version(generation, number)

    def wait(self, version, level=Level.DURABLE, timeout=None):
        """Waits until a version has a level, for all ranks; for `timeout` seconds at most, or as long as for other ranks."""
        self._session.wait(version, level, timeout)

    def due(self, interval):
        """Whether `interval` seconds have gone by since the last commit, or the begin: the same on all ranks, which all call it."""
        return self._session.due(interval)

    def versions(self):
        """What `restart` could take, newest last."""
        return [VersionInfo(Version(g, n), size, ranks, Level(level)) for g, n, size, ranks, level in self._session.versions()]

    def stats(self):
        """What this rank did since it began."""
        return Stats(**self._session.stats())


ObjectInfo = collections.namedtuple("ObjectInfo", ["key", "bytes", "unit", "shape"])
ObjectInfo.__doc__ = "An object of a rank: its bytes, those of an element, and, of a Block, the shape of the rank's box."


class Reader:
    """A version of another program, which stays as it is, whatever that program does, until this is closed and the last view of it is gone.
    `version` is which, `level` what it survives, `of` how many ranks wrote it, and `ranks` those that are on this node."""

    def __init__(self, reader):
        self._reader = reader
        generation, number, self.of, level, self.ranks = reader.version()
        self.version, self.level = Version(generation, number), Level(level)

    def _open(self):
        if self._reader is None:
            raise ClosedError(Code.INIT, f"version {self.version} was closed: open it again with phx.open_version")
        return self._reader

    def objects(self, rank=0):
        """What a rank has, by key."""
        return [ObjectInfo(key.decode(errors="surrogateescape"), size, unit, shape and tuple(shape)) for key, size, unit, shape in self._open().objects(rank)]

    def map(self, key, rank=0):
        """A read-only view of an object where it is stored."""
        return memoryview(self._open().map(rank, key))

    def array(self, key, rank=0, dtype=float, shape=None):
        """The same as a read-only numpy array. Checkpoints do not keep what type it has, nor, but of a Block, which shape: without one it
        has one dimension."""
        import numpy

        kind, found = numpy.dtype(dtype), self._open().map(rank, key)
        size = len(memoryview(found))
        if kind.hasobject or kind.itemsize == 0 or size % kind.itemsize:
            raise InvalidError(Code.INVALID, f"object {key!r} has {size} bytes, which is no array of {kind}")
        flat = numpy.ndarray((size // kind.itemsize,), kind, buffer=found)
        if shape is None:
            shape = next((o.shape for o in self.objects(rank) if o.key == key), None)
        try:
            return flat if shape is None else flat.reshape(shape)
        except ValueError as e:
            raise InvalidError(
                Code.INVALID,
                f"object {key!r} has {size} bytes, {flat.size} elements of {kind}, which have no shape {shape}: "
                "give the dtype that it was made with, or a shape of as many elements",
            ) from e

    def close(self):
        """Ends it. Views and arrays can still be used, and keep the version where it is for as long as they are there."""
        self._reader = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def open_version(run=None, *, tier=None, version=None, verify=True):
    """A Reader of a version of the program `run` (TARN_PHX_RUN, or "phx") on this node, whose persistent tier is `tier` (TARN_PHX_TIER): of
    the newest that all of its ranks here have durable, or of `version`. The program may be running, and need not. With `verify`, an object
    is compared with its checksums when it is first mapped.

        with phx.open_version("heat") as seen:
            print(seen.version, [seen.array("field", rank).max() for rank in seen.ranks])
    """
    return Reader(_phx.Reader(run, tier, version, verify))
