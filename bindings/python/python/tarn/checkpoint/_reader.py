"""Reading versions of another program."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from .._library import _native
from ..errors import ClosedError
from ._codes import Code, invalid
from ._versions import Level, Version

if TYPE_CHECKING:
    import numpy.typing as npt


class ObjectInfo(NamedTuple):
    """An object of a rank: its bytes, those of an element, and of a `Block` the box's shape."""

    key: str
    bytes: int
    unit: int
    shape: tuple[int, ...] | None


class Reader:
    """A version of another program, made by `open_version`.

    The version stays as it is, whatever that program does, until this is closed and the last
    view of it is gone. A `with` block closes it.

    Attributes
    ----------
    version : Version
        Which it is.
    level : Level
        The losses that it survives.
    of : int
        How many ranks wrote it.
    ranks : list of int
        Those whose part is on this node.

    Examples
    --------
    >>> import tarn
    >>> ck = tarn.checkpoint.Checkpoints(run="read")
    >>> ck.zeros("field", (2, 3))[:] = 5.0
    >>> ck.wait(ck.commit())
    >>> reader = open_version("read")
    >>> str(reader.version), reader.level.name, reader.of
    ('1.1', 'DURABLE', 1)
    >>> [(one.key, one.bytes, one.unit) for one in reader.objects()]
    [('field', 48, 8)]
    >>> reader.array("field", shape=(2, 3)).sum()          # not copied
    30.0
    >>> len(reader.map("field"))
    48
    >>> reader.close()
    >>> ck.close()
    """

    def __init__(self, reader: _native.Reader) -> None:
        self._reader: _native.Reader | None = reader
        generation, number, self.of, level, self.ranks = reader.version()
        self.version, self.level = Version(generation, number), Level(level)

    def _open(self) -> _native.Reader:
        if self._reader is None:
            text = f"version {self.version} was closed: open it again with open_version"
            raise ClosedError(Code.INIT, text)
        return self._reader

    def objects(self, rank: int = 0) -> list[ObjectInfo]:
        """The objects of a rank, by key.

        Raises
        ------
        NotFoundError
            The rank is not on this node.
        """
        return [
            ObjectInfo(
                key.decode(errors="surrogateescape"),
                size,
                unit,
                None if shape is None else tuple(shape),
            )
            for key, size, unit, shape in self._open().objects(rank)
        ]

    def map(self, key: str, rank: int = 0) -> memoryview:
        """A read-only view of the bytes of an object where it is stored.

        Raises
        ------
        NotFoundError
            The rank has no such object, or is not on this node.
        CorruptError
            The object does not match its checksums.
        """
        return memoryview(self._open().map(rank, key))

    def array(
        self,
        key: str,
        rank: int = 0,
        dtype: npt.DTypeLike = float,
        shape: int | Iterable[int] | None = None,
    ) -> npt.NDArray[Any]:
        """An object as a read-only numpy array, not copied.

        Parameters
        ----------
        key : str
            The object.
        rank : int
            The rank whose part of it is mapped.
        dtype : dtype
            Its type, which checkpoints do not keep.
        shape : int or iterable of int, optional
            Its shape. Without one that of a `Block`; any other object has one dimension.

        Raises
        ------
        InvalidError
            Its bytes are no array of that type and shape.
        Error
            As of `map`.
        """
        import numpy

        kind, found = numpy.dtype(dtype), self._open().map(rank, key)
        size = len(memoryview(found))
        if kind.hasobject or kind.itemsize == 0 or size % kind.itemsize:
            raise invalid(f"object {key!r} has {size} bytes, which is no array of {kind}")
        flat: npt.NDArray[Any] = numpy.ndarray((size // kind.itemsize,), kind, buffer=found)
        wanted: Any = shape
        if wanted is None:
            wanted = next((o.shape for o in self.objects(rank) if o.key == key), None)
        try:
            return flat if wanted is None else flat.reshape(wanted)
        except ValueError as error:
            raise invalid(
                f"object {key!r} has {size} bytes, {flat.size} elements of {kind}, which have no "
                f"shape {wanted}: give the dtype that it was made with, or a shape of as many "
                "elements"
            ) from error

    def close(self) -> None:
        """Closes it. Views and arrays stay usable, and keep the version while they are there."""
        self._reader = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_version(
    run: str | None = None,
    *,
    tier: str | os.PathLike[str] | None = None,
    version: tuple[int, int] | None = None,
    verify: bool = True,
) -> Reader:
    """Opens a version of a program on this node, which may be running.

    Parameters
    ----------
    run : str, optional
        The program's name ($TARN_PHX_RUN, or "phx").
    tier : path, optional
        Its folder on the persistent tier ($TARN_PHX_TIER).
    version : tuple of int, optional
        Which version; without one the newest that all of its ranks here have durable.
    verify : bool
        Whether an object is compared with its checksums when it is first mapped.

    Raises
    ------
    NotFoundError
        The program has no such version.

    Examples
    --------
    >>> import numpy, tarn
    >>> with tarn.checkpoint.Checkpoints(run="seen") as ck:
    ...     ck.zeros("field", (2, 3))[:] = 5.0
    ...     ck.wait(ck.commit())
    >>> with open_version("seen") as seen:
    ...     print(seen.version, seen.ranks, seen.array("field").max())
    1.1 [0] 5.0
    """
    return Reader(_native.Reader(run, tier, version, verify))
