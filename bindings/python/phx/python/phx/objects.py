"""Objects of a node's store: what one program has put there, all others of the node map where it is stored. docs/guide/objects.md.

    store = phx.Objects("/mnt/pmem/store")          # or $TARN_OBJECTS
    with store.create("field", (300, 300)) as draft:
        draft.array[:] = 1                          # in the store's own memory: nothing is copied
    store.array("field")                            # here, or in any other program: read-only, not copied either

A version never changes. What is mapped stays for as long as a view of it does, also when the version is deleted.
"""

import collections

from . import _phx


class ObjectInfo(collections.namedtuple("ObjectInfo", ["key", "number", "bytes", "about", "damaged"])):
    """A version of an object: its bytes, its description, and whether its file is not whole or may not be read (then both are
    unknown, and so is its number, 0, where the folder of its key may not be read)."""

    __slots__ = ()


def _described(array):
    """The description of an array, so that `Objects.array` finds its type and shape again."""
    if getattr(array, "dtype", None) is None or array.dtype.names:
        return ""
    return f"{array.dtype.str} {','.join(map(str, array.shape))}"


class Draft:
    """Memory of the store that is not published yet: `memory`, and the same as the numpy array `array`, if it was created as one. A `with`
    block publishes it at its end, or gives it up if it is left by an exception; `number` is then the version's. Arrays stay usable, and
    what is written to them after that changes no object. Nobody may write to them while it is published, nor may a
    child that is forked before that do so later."""

    def __init__(self, draft, array):
        self._draft = draft
        self.memory = memoryview(draft)
        self.array = array
        self.number = None
        self._abandoned = False

    def publish(self, about=None):
        """Makes it a version that all see, durably, and returns its number."""
        self.number = self._draft.publish(_described(self.array) if about is None else about)
        return self.number

    def abandon(self):
        """Gives it up: nothing is left of it."""
        self._draft.abandon()
        self._abandoned = True

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.abandon()
        elif self.number is None and not self._abandoned:
            self.publish()


class Objects:
    """The object store in a folder that is there, or in the one that `$TARN_OBJECTS` names. Any number of threads and programs may use one;
    keys have parts between slashes, versions of a key are numbered from 1 on, and without `number` the newest is used.
    `encrypt`: new versions are ciphertext in the store, with the key that `tarn key new` makes (else where `$TARN_OBJECTS_ENCRYPT` is 1); they
    are mapped into memory of the program that reads them."""

    def __init__(self, store=None, *, encrypt=None):
        self._store = _phx.Store(store, encrypt)

    def put(self, key, data, about=None):
        """Copies a numpy array, or anything with a contiguous buffer, into a new version, durably, and returns its number. `about` is a
        text of at most 255 bytes that readers are given; of an array, its type and shape unless given."""
        return self._store.put(key, data, _described(data) if about is None else about)

    def create(self, key, shape, dtype=None):
        """A Draft: an array of zeros to be filled in place, or (`dtype=None` and a number of bytes as `shape`) its memory alone."""
        if dtype is None and isinstance(shape, int):
            return Draft(self._store.create(key, shape), None)
        import numpy

        dtype = numpy.dtype(float if dtype is None else dtype)
        shape = tuple(shape) if numpy.iterable(shape) else (shape,)
        count = 1
        for length in shape:
            count *= length
        if dtype.hasobject or count < 0:
            raise ValueError(f"object {key!r} would be an array of {dtype}, {shape}: give it a type of numbers, and a size")
        draft = self._store.create(key, count * dtype.itemsize)
        return Draft(draft, numpy.ndarray(shape, dtype, buffer=draft))

    def map(self, key, number=None, *, verify=False):
        """A read-only view of a version where it is stored. With `verify`, all of it is read first and compared with its checksums."""
        return memoryview(self._store.map(key, number, verify))

    def array(self, key, number=None, *, verify=False):
        """The same as a read-only numpy array of the type and shape that it was put with; of bytes, where none was given."""
        import numpy

        found = self._store.map(key, number, verify)
        dtype, _, shape = found.about.partition(" ")
        try:
            kind, lengths = numpy.dtype(dtype or "u1"), [int(length) for length in shape.split(",") if length]
            if kind.hasobject:
                raise ValueError("objects of Python cannot be mapped")
            lengths = lengths if dtype else [len(memoryview(found))]
            return numpy.ndarray(lengths, kind, buffer=found)
        except (TypeError, ValueError, SyntaxError) as e:
            raise ValueError(f"object {key!r} is described as {found.about!r}, which is not an array ({e}): map it") from e

    def get(self, key, number=None):
        """A verified copy, as bytes."""
        return self._store.get(key, number)

    def list(self):
        """The newest version of every object, by key."""
        return [ObjectInfo(*found) for found in self._store.list()]

    def versions(self, key):
        """All versions of an object, newest last."""
        return [ObjectInfo(*found) for found in self._store.versions(key)]

    def delete(self, key, number=None):
        """Deletes a version, or all of them. Views of it stay; its number is not used again."""
        self._store.delete(key, number)

    def fetch(self, key, node, number=None):
        """Has the node's tarnd ($TARN_SOCKET) bring a version from the same store of another node, verified; returns its number."""
        return self._store.fetch(key, number, node)
