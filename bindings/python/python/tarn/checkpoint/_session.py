"""The checkpoints of a rank."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._library import _native
from ._codes import invalid
from ._shapes import OWN, Shape
from ._versions import DegradedWarning, Level, Stats, Version, VersionInfo

if TYPE_CHECKING:
    import numpy.typing as npt

Path = str | os.PathLike[str]


class Checkpoints:
    """The checkpoints of one rank of a program. All ranks make them.

    A `with` block that ends closes them, and what is staged is then on the persistent tier. If
    it is left by an exception, they end as if the process was killed: no other rank is waited
    for, and the next start has what was committed.

    Parameters
    ----------
    tier : path, optional
        A folder on the node's persistent tier ($TARN_PHX_TIER).
    run : str, optional
        The program's name ($TARN_PHX_RUN, or "phx"). Programs that run at the same time need
        different names.
    rank, ranks : int
        Which rank this is, of how many.
    replicas : int, optional
        Copies of what is staged, each on another node: 1 to 3 (1 where ranks are on several
        nodes).
    copies : int
        Copies of all of a version, on other nodes.
    parity : int
        In place of `copies`: sets of so many ranks, of which any one can be made again.
    replicate_every : int
        `copies` or `parity` are for every so many-th version.
    staging : int, optional
        Bytes that may be staged in memory: 0 for none, `ALL` for all. By default half of a
        checkpoint, or nothing where the tier is memory.
    memory : path, optional
        A folder in memory for what is staged ($TARN_PHX_MEMORY, or /dev/shm).
    meet : str, optional
        HOST:PORT of rank 0 where ranks are on several nodes ($TARN_PHX_MEET).
    key : path, optional
        With `meet`: a file of 64 hexadecimal digits that only this user can read
        ($TARN_PHX_KEY).
    profile : str, optional
        A slower tier is emulated, for tests: "device=2.5GB/s" ($TARN_PHX_PROFILE).
    timeout : float, optional
        Seconds: the longest wait for other ranks (60).
    helper : bool
        Whether a thread in the background copies and de-stages.
    processors : iterable of int
        The processors that this thread may use; by default the program's.
    same_node : bool
        Whether a buddy on the same node will do, for tests.
    mprotect : bool
        Whether what is copied ahead is found by a handler of SIGSEGV, as phx_init(3) says of
        PHX_MPROTECT. Reading a file into an array (`readinto`) can fail then.
    encrypt : bool
        Whether what objects hold is encrypted wherever versions are stored, with the key that
        `tarn key new` makes.
    external : path, optional
        A folder on a store that outlives the nodes ($TARN_PHX_EXTERNAL).
    flush_every : int, optional
        Every so many-th version goes there ($TARN_PHX_FLUSH_EVERY).
    flush_rate : int, optional
        Bytes a second at which it does at most ($TARN_PHX_FLUSH_RATE).
    transport : str, optional
        How bytes go between nodes: "tcp", "libfabric:PROVIDER", or "libfabric" for the best
        that there is ($TARN_PHX_TRANSPORT). Where that is missing they go by TCP, and the next
        `commit` warns.

    Raises
    ------
    InvalidError
        An argument or a variable of the environment makes no sense, or the tier is not mounted.
    BusyError
        Another program of that name is running.
    TimedOutError
        The other ranks did not come in time.

    Examples
    --------
    >>> with Checkpoints(run="documented") as ck:
    ...     field = ck.zeros("field", 1000)
    ...     print(ck.restart(), ck.commit())
    None 1.1
    """

    def __init__(
        self,
        *,
        tier: Path | None = None,
        run: str | None = None,
        rank: int = 0,
        ranks: int = 1,
        replicas: int | None = None,
        copies: int = 0,
        parity: int = 0,
        replicate_every: int = 1,
        staging: int | None = None,
        memory: Path | None = None,
        meet: str | None = None,
        key: Path | None = None,
        profile: str | None = None,
        timeout: float | None = None,
        helper: bool = True,
        processors: Iterable[int] = (),
        same_node: bool = False,
        mprotect: bool = False,
        encrypt: bool = False,
        external: Path | None = None,
        flush_every: int | None = None,
        flush_rate: int | None = None,
        transport: str | None = None,
    ) -> None:
        self._session = _native.Session(
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

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close(kind is None)

    def close(self) -> None:
        """De-stages what is staged, and ends. All ranks call it. Arrays stay usable.

        Raises
        ------
        Error
            A staged version cannot be de-staged: it stays in memory for the next start.

        Examples
        --------
        >>> ck = Checkpoints(run="closed")
        >>> field = ck.zeros("field", 10)
        >>> print(ck.commit())
        1.1
        >>> ck.close()
        >>> field[0] = 1.0                      # its memory stays
        """
        self._session.close(True)

    def zeros(
        self,
        key: str,
        shape: int | Iterable[int],
        dtype: npt.DTypeLike = float,
        *,
        shape_of: Shape = OWN,
        transient: bool = False,
        precopy: bool | None = None,
        versions: int = 1,
        persistence: int = Level.COMMITTED,
        replicas: int | None = None,
    ) -> npt.NDArray[Any]:
        """Makes an object: a numpy array of zeros.

        Parameters
        ----------
        key : str
            Its name.
        shape : int or iterable of int
            The shape of the array.
        dtype : dtype
            A type of numbers.
        shape_of : Shape
            How it is a part of what all ranks have together: `OWN`, `REPLICATED`, a `Block` or
            `Irregular` rows.
        transient : bool
            Whether it is left out of checkpoints.
        precopy : bool, optional
            Whether it is copied ahead of commits: where that pays (None), always, or never
            (devices or other processes write to it).
        versions : int
            How many versions are kept beside the newest, at most 13.
        persistence : int
            The `Level` that a version has reached when `commit` returns. From `Level.DURABLE`
            on nothing is staged; if a version cannot reach more in time, `commit` warns.
        replicas : int, optional
            Copies of what is staged, each on another node, at most 3; by default those of
            `Checkpoints`.

        Returns
        -------
        numpy.ndarray
            Its memory is there as long as the array or a view of it.

        Raises
        ------
        InvalidError
            The key, the type or a property makes no sense.
        ExistsError
            There is an object of that key.
        NoMemoryError, NoSpaceError
            Memory or the tier is too small for all objects.

        Examples
        --------
        Three versions are kept beside the newest, each on the tier when `commit` returns; every
        rank has its own rows of an array of 1,000 x 400:

        >>> from tarn.checkpoint import Block
        >>> with Checkpoints(run="zeros") as ck:
        ...     block = Block(all=(1000, 400), first=(0, 0))
        ...     field = ck.zeros(
        ...         "field", (1000, 400), "f4", shape_of=block, versions=3,
        ...         persistence=Level.DURABLE,
        ...     )
        ...     print(field.shape, field.dtype, ck.commit())
        (1000, 400) float32 1.1

        Notes
        -----
        A version is complete or it does not exist: of `versions`, `persistence` and `replicas`
        the most that an object asks for counts, as long as that object is there.
        """
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise invalid(
                f"object {key!r} would hold Python objects: give it a type of numbers, not {kind}"
            )
        lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        count = 1
        for length in lengths:
            count *= length
        described = _describe(
            shape_of, lengths, transient, precopy, versions, persistence, replicas
        )
        region = self._session.create(key, count * kind.itemsize, kind.itemsize, described)
        return numpy.ndarray(lengths, kind, buffer=region)

    def create(
        self,
        key: str,
        size: int,
        unit: int = 1,
        *,
        shape_of: Shape = OWN,
        transient: bool = False,
        precopy: bool | None = None,
        versions: int = 1,
        persistence: int = Level.COMMITTED,
        replicas: int | None = None,
    ) -> memoryview:
        """Makes an object without numpy: `size` zero bytes, of elements of `unit` bytes.

        The other parameters and errors are those of `zeros`.

        Returns
        -------
        memoryview
            The memory, writable, as `size` bytes.

        Examples
        --------
        >>> with Checkpoints(run="created") as ck:
        ...     memory = ck.create("particles", 4800, 48)
        ...     memory[:5] = b"hello"
        ...     print(len(memory), ck.commit())
        4800 1.1
        """
        elements = (size // max(unit, 1),)
        described = _describe(
            shape_of, elements, transient, precopy, versions, persistence, replicas
        )
        return memoryview(self._session.create(key, size, unit, described))

    def register(
        self,
        key: str,
        array: Any,
        *,
        shape_of: Shape = OWN,
        transient: bool = False,
        precopy: bool | None = None,
        versions: int = 1,
        persistence: int = Level.COMMITTED,
        replicas: int | None = None,
    ) -> None:
        """Makes an object of memory that the program has.

        Parameters
        ----------
        key : str
            Its name.
        array : buffer
            A numpy array, a bytearray, anything with a buffer that can be written and is
            contiguous in C's order; of a PyTorch tensor on the CPU, ``tensor.numpy()``. It is
            held until the object is destroyed or the checkpoints are closed.
        shape_of, transient, precopy, versions, persistence, replicas
            As of `zeros`.

        Raises
        ------
        InvalidError
            It has no such buffer, or another object has some of its memory.
        ExistsError
            There is an object of that key.

        Examples
        --------
        >>> state = bytearray(8)
        >>> with Checkpoints(run="registered") as ck:
        ...     ck.register("state", state)
        ...     print(ck.commit())
        1.1
        """
        try:
            view = memoryview(array)
        except (TypeError, ValueError) as error:
            raise invalid(
                f"the memory for object {key!r} gives no buffer ({error}): register a view of it "
                "as numbers"
            ) from error
        described = _describe(
            shape_of, view.shape or (), transient, precopy, versions, persistence, replicas
        )
        self._session.register(key, view, described)

    def destroy(self, key: str) -> None:
        """Forgets an object, and frees its memory. Versions that have it keep it.

        Raises
        ------
        NotFoundError
            There is no object of that key.

        Examples
        --------
        >>> with Checkpoints(run="destroyed") as ck:
        ...     _ = ck.zeros("scratch", 10)
        ...     ck.destroy("scratch")
        ...     try:
        ...         ck.destroy("scratch")
        ...     except LookupError as error:
        ...         print(error.code.name)
        NOTFOUND
        """
        self._session.destroy(key)

    def restart(self, version: tuple[int, int] | None = None) -> Version | None:
        """Fills all objects from a version.

        All ranks call it, with the same objects, before their first commit.

        Parameters
        ----------
        version : tuple of int, optional
            Which; without one the newest that all ranks can have.

        Returns
        -------
        Version or None
            Which it was; None at a first start.

        Raises
        ------
        NotFoundError
            There is no such version.
        InvalidError
            The version has an object that is not there, or of another size.
        CorruptError
            No undamaged copy of an object is left.

        Examples
        --------
        >>> for start in range(2):
        ...     with Checkpoints(run="restarted") as ck:
        ...         step = ck.zeros("step", (), int)
        ...         print(ck.restart(), step[()])
        ...         step += 5
        ...         version = ck.commit()
        None 0
        1.1 5
        """
        restored = self._session.restart(version)
        return None if restored is None else Version(*restored)

    def commit(self) -> Version:
        """Keeps the state of all objects as a new version.

        All ranks call it equally often: a failed commit counts too, so do not repeat it on one
        rank alone. A rank waits for others only for space, and for the persistence that objects
        ask for.

        Returns
        -------
        Version
            The new version: it survives the process.

        Raises
        ------
        NoSpaceError, NoMemoryError
            The persistent tier or memory is full.
        LostError, TimedOutError
            Another rank is gone, or late.
        InvalidError
            This rank is 32 commits ahead of another.

        Warns
        -----
        DegradedWarning
            The version has fewer copies than the options demand.

        Examples
        --------
        >>> with Checkpoints(run="committed") as ck:
        ...     field = ck.zeros("field", 1000)
        ...     versions = [ck.commit() for _ in range(2)]
        ...     print(*versions, ck.stats().commits)
        1.1 1.2 2
        """
        generation, number, degraded = self._session.commit()
        if degraded is not None:
            warnings.warn(degraded, DegradedWarning, stacklevel=2)
        return Version(generation, number)

    def wait(
        self,
        version: tuple[int, int],
        level: int = Level.DURABLE,
        timeout: float | None = None,
    ) -> None:
        """Waits until a version has reached a level, for all ranks.

        Parameters
        ----------
        version : tuple of int
            The version that `commit` has returned.
        level : int
            The `Level`.
        timeout : float, optional
            Seconds at most; without it as long as for other ranks.

        Raises
        ------
        TimedOutError
            The version has not reached it.
        NotFoundError
            There is no such version.
        UnsupportedError
            Nothing brings versions to this level: `copies` or `parity`, or `external` is missing.

        Examples
        --------
        >>> with Checkpoints(run="waited") as ck:
        ...     field = ck.zeros("field", 1000)
        ...     version = ck.commit()
        ...     ck.wait(version, Level.DURABLE, timeout=30)
        """
        self._session.wait(version, level, timeout)

    def due(self, interval: float) -> bool:
        """Whether a time has passed since the last commit, or the start.

        All ranks call it, and get the same answer, by the clock of rank 0.

        Parameters
        ----------
        interval : float
            The time in seconds.

        Returns
        -------
        bool
            Whether it is time for a commit.

        Examples
        --------
        >>> with Checkpoints(run="due") as ck:
        ...     print(ck.due(0), ck.due(3600))
        True False
        """
        return self._session.due(interval)

    def versions(self) -> list[VersionInfo]:
        """The versions of earlier starts that `restart` can take, newest last.

        Examples
        --------
        >>> for start in range(2):
        ...     with Checkpoints(run="listed") as ck:
        ...         field = ck.zeros("field", 1000)
        ...         print([(str(one.version), one.bytes) for one in ck.versions()])
        ...         version = ck.commit()
        []
        [('1.1', 8000)]
        """
        return [
            VersionInfo(Version(generation, number), size, ranks, Level(level))
            for generation, number, size, ranks, level in self._session.versions()
        ]

    def stats(self) -> Stats:
        """The work of this rank since it began: counts, bytes and nanoseconds.

        Examples
        --------
        >>> with Checkpoints(run="counted") as ck:
        ...     field = ck.zeros("field", 1000)
        ...     version = ck.commit()
        ...     stats = ck.stats()
        ...     print(stats.commits, stats.bytes, stats.commit_ns > 0)
        1 8000 True
        """
        return Stats(**self._session.stats())


def _describe(
    shape_of: Shape,
    shape: tuple[int, ...],
    transient: bool,
    precopy: bool | None,
    versions: int,
    persistence: int,
    replicas: int | None,
) -> dict[str, Any]:
    """The properties of an object, as the native library takes them."""
    return {
        "transient": transient,
        "precopy": precopy,
        "versions": versions,
        "persistence": persistence,
        "replicas": replicas,
        "shape": shape_of._describe(shape),
    }
