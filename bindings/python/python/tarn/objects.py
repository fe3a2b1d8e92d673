"""Objects of a node's store: any program of the node maps what another one has put there.

docs/guide/objects.md explains the words. A version never changes. Mapped memory stays for as
long as a view of it does, also when the version is deleted. Errors are those of
`tarn.checkpoint`.

Examples
--------
With an existing folder in $TARN_OBJECTS:

>>> import tarn
>>> store = tarn.objects.Objects()
>>> with store.create("doc/field", (300, 300)) as draft:
...     draft.array[:] = 1                      # in the store's own memory: nothing is copied
>>> float(store.array("doc/field").sum())       # here or in any other program: not copied either
90000.0
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._library import _native

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Draft", "ObjectInfo", "Objects"]


class ObjectInfo(NamedTuple):
    """A version of an object.

    `about` is its description. `damaged` says that its file is not whole or may not be read:
    then `bytes` and `about` are unknown, and so is `number` (0) where the folder of its key may
    not be read.
    """

    key: str
    number: int
    bytes: int
    about: str
    damaged: bool


def _describe(array: Any) -> str:
    """The description of an array, so that `Objects.array` finds its type and shape again."""
    dtype = getattr(array, "dtype", None)
    if dtype is None or dtype.names:
        return ""
    return f"{dtype.str} {','.join(map(str, array.shape))}"


def _view(of: Any) -> memoryview:
    """The memory of an object of the native library."""
    return memoryview(of)


class Draft:
    """Memory of the store that is not published yet; made by `Objects.create`.

    A `with` block publishes it at its end, or gives it up if it is left by an exception. Arrays
    stay usable, and what is written to them after that changes no object. Nobody may write to
    them while it is published, nor may a child that is forked before that do so later.

    Attributes
    ----------
    memory : memoryview
        The memory, writable.
    array : numpy.ndarray or None
        The same as an array; None if it was created as bytes.
    number : int or None
        The number of the version, once it is published.

    Examples
    --------
    >>> store = Objects()
    >>> draft = store.create("doc/draft", (2, 2))
    >>> draft.array[:] = 7
    >>> draft.publish()
    1
    >>> store.array("doc/draft")
    array([[7., 7.], [7., 7.]])
    >>> with store.create("doc/raw", 5) as raw:            # bytes, without numpy
    ...     raw.memory[:] = b"hello"
    >>> raw.number, store.get("doc/raw")
    (1, b'hello')
    """

    def __init__(self, draft: _native.Draft, array: npt.NDArray[Any] | None) -> None:
        self._draft = draft
        self.array: Any = array
        self.memory = _view(draft)
        self.number: int | None = None
        self._abandoned = False

    def publish(self, about: str | None = None) -> int:
        """Makes it a version that all see, durably.

        Parameters
        ----------
        about : str, optional
            A text of at most 255 bytes for its readers; of an array, its type and shape.

        Returns
        -------
        int
            The number of the version.

        Raises
        ------
        BusyError
            Another program has held the key's lock for 10 s: publish again.
        """
        self.number = self._draft.publish(_describe(self.array) if about is None else about)
        return self.number

    def abandon(self) -> None:
        """Gives it up: nothing is left of it. A draft that was published stays so."""
        self._draft.abandon()
        self._abandoned = True

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif self.number is None and not self._abandoned:
            self.publish()


class Objects:
    """The object store in a folder. Any number of threads and programs may use one.

    Keys have 1 to 255 bytes: parts between slashes, that begin with no "." and end with no
    ".obj". Versions of a key are numbered from 1; without `number` the newest is used.

    Parameters
    ----------
    store : path, optional
        An existing folder ($TARN_OBJECTS).
    encrypt : bool, optional
        Whether new versions are ciphertext in the store, with the key that `tarn key new` makes
        (where $TARN_OBJECTS_ENCRYPT is 1). They are mapped into the memory of each reader.

    Raises
    ------
    InvalidError
        No store is named.
    NotFoundError
        There is no such folder.

    Examples
    --------
    >>> store = Objects()                       # that of $TARN_OBJECTS
    >>> for text in (b"one", b"two"):
    ...     number = store.put("doc/text", text)
    >>> store.get("doc/text"), store.get("doc/text", 1)
    (b'two', b'one')
    >>> store.delete("doc/text")
    >>> Objects("/no/such/folder")
    Traceback (most recent call last):
        ...
    tarn.errors.NotFoundError: there is no folder /no/such/folder: make it
    """

    def __init__(
        self, store: str | os.PathLike[str] | None = None, *, encrypt: bool | None = None
    ) -> None:
        self._store = _native.Store(store, encrypt)

    def put(self, key: str, data: Any, about: str | None = None) -> int:
        """Copies memory into a new version, durably.

        Parameters
        ----------
        key : str
            The object.
        data : buffer
            A numpy array, or anything with a contiguous buffer.
        about : str, optional
            A text of at most 255 bytes for its readers; of an array, its type and shape.

        Returns
        -------
        int
            The number of the version.

        Raises
        ------
        InvalidError
            The key, the text or the buffer is none that can be put.
        NoSpaceError, NoMemoryError
            The store is full.
        BusyError
            Another program has held the key's lock for 10 s.

        Examples
        --------
        >>> store = Objects()
        >>> store.put("doc/points", bytes(range(10)), about="ten points")
        1
        >>> store.versions("doc/points")[0].about, store.get("doc/points")[:3]
        ('ten points', b'\\x00\\x01\\x02')
        """
        return self._store.put(key, data, _describe(data) if about is None else about)

    def create(
        self, key: str, shape: int | Iterable[int], dtype: npt.DTypeLike | None = None
    ) -> Draft:
        """Makes memory of the store, which is filled in place and then published.

        Parameters
        ----------
        key : str
            The object.
        shape : int or iterable of int
            The shape of an array of zeros; a number without `dtype` is one of bytes.
        dtype : dtype, optional
            A type of numbers (float).

        Returns
        -------
        Draft
            Its `array`, or its `memory`, is filled and then published.

        Raises
        ------
        ValueError
            The type is none of numbers, or a length is negative.
        NoSpaceError, NoMemoryError
            The store is full.

        Examples
        --------
        >>> with Objects().create("doc/grid", (100, 3), "i4") as draft:
        ...     draft.array[:, 0] = range(100)
        >>> draft.number
        1
        """
        if dtype is None and isinstance(shape, int):
            return Draft(self._store.create(key, shape), None)
        import numpy

        kind = numpy.dtype(float if dtype is None else dtype)
        lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        count = 1
        for length in lengths:
            count *= length
        if kind.hasobject or count < 0:
            raise ValueError(
                f"object {key!r} would be an array of {kind}, {lengths}: give it a type of "
                "numbers, and a size"
            )
        draft = self._store.create(key, count * kind.itemsize)
        buffer: Any = draft
        array: npt.NDArray[Any] = numpy.ndarray(lengths, kind, buffer=buffer)
        return Draft(draft, array)

    def map(self, key: str, number: int | None = None, *, verify: bool = False) -> memoryview:
        """A read-only view of a version where it is stored.

        Parameters
        ----------
        key : str
            The object.
        number : int, optional
            Its version; without one the newest.
        verify : bool
            Whether all of it is read first and compared with its checksums.

        Raises
        ------
        NotFoundError
            There is no such version.
        CorruptError
            It is damaged.

        Examples
        --------
        >>> store = Objects()
        >>> number = store.put("doc/mapped", b"0123456789")
        >>> view = store.map("doc/mapped", verify=True)
        >>> bytes(view[2:5]), view.readonly
        (b'234', True)
        """
        return _view(self._store.map(key, number, verify))

    def array(
        self, key: str, number: int | None = None, *, verify: bool = False
    ) -> npt.NDArray[Any]:
        """A version as a read-only numpy array, not copied.

        It has the type and shape that it was put with; where none was given, it is of bytes.
        Parameters and errors are those of `map`.

        Raises
        ------
        ValueError
            Its description is no array's: map it.

        Examples
        --------
        >>> import numpy
        >>> store = Objects()
        >>> number = store.put("doc/array", numpy.arange(6).reshape(2, 3))
        >>> store.array("doc/array").shape
        (2, 3)
        """
        import numpy

        found = self._store.map(key, number, verify)
        dtype, _, lengths = found.about.partition(" ")
        try:
            kind = numpy.dtype(dtype or "u1")
            shape = [int(length) for length in lengths.split(",") if length]
            if kind.hasobject:
                raise ValueError("objects of Python cannot be mapped")
            shape = shape if dtype else [len(_view(found))]
            buffer: Any = found
            return numpy.ndarray(shape, kind, buffer=buffer)
        except (TypeError, ValueError, SyntaxError) as error:
            raise ValueError(
                f"object {key!r} is described as {found.about!r}, which is not an array "
                f"({error}): map it"
            ) from error

    def get(self, key: str, number: int | None = None) -> bytes:
        """A copy of a version, compared with its checksums; errors are those of `map`."""
        return self._store.get(key, number)

    def list(self) -> builtins.list[ObjectInfo]:
        """The newest version of every object, by key.

        Examples
        --------
        >>> store = Objects()
        >>> for step in range(3):
        ...     number = store.put("doc/listed", bytes(8), about=f"step {step}")
        >>> [(o.number, o.bytes, o.about) for o in store.list() if o.key == "doc/listed"]
        [(3, 8, 'step 2')]
        >>> len(store.versions("doc/listed"))
        3
        """
        return [ObjectInfo(*found) for found in self._store.list()]

    def versions(self, key: str) -> builtins.list[ObjectInfo]:
        """All versions of an object, newest last.

        Raises
        ------
        NotFoundError
            There is none.
        """
        return [ObjectInfo(*found) for found in self._store.versions(key)]

    def delete(self, key: str, number: int | None = None) -> None:
        """Deletes a version, or all of them.

        Views of it stay; its number is not used again.

        Raises
        ------
        NotFoundError
            There is no such version.

        Examples
        --------
        >>> store = Objects()
        >>> number = store.put("doc/deleted", b"old")
        >>> view = store.map("doc/deleted")
        >>> store.delete("doc/deleted")
        >>> bytes(view)
        b'old'
        """
        self._store.delete(key, number)

    def fetch(self, key: str, node: str, number: int | None = None) -> int:
        """Has tarnd ($TARN_SOCKET) bring a version from the same store of another node, verified.

        Parameters
        ----------
        key : str
            The object.
        node : str
            The other node.
        number : int, optional
            The version; without one the newest there.

        Returns
        -------
        int
            The number of the version.

        Raises
        ------
        NotFoundError
            The other node has no such version.
        ExistsError
            Another object has that number here.
        LostError
            tarnd or the other node does not answer.
        """
        return self._store.fetch(key, number, node)
