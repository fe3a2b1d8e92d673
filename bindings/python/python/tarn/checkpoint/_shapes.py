"""How an object of a rank is a part of what all ranks have together."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from ._codes import invalid

Dimensions = list[tuple[int, int, int, int]]


class Shape(Protocol):
    """`OWN`, `REPLICATED`, a `Block` or `Irregular` rows."""

    def _describe(self, shape: tuple[int, ...]) -> tuple[int, Dimensions, int]:
        """The kind (as in phx.h), the dimensions, and the bytes of a row."""


@dataclasses.dataclass(frozen=True)
class _Whole:
    """An object that is not divided."""

    kind: int

    def _describe(self, shape: tuple[int, ...]) -> tuple[int, Dimensions, int]:
        return self.kind, [], 0


OWN: Shape = _Whole(0)
"""The object goes back to the rank that it came from: the default."""

REPLICATED: Shape = _Whole(1)
"""The object is the same on all ranks."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A box of an array that all ranks have together. The box has the shape of the object.

    Such an object can be restored by another number of ranks.

    Attributes
    ----------
    all : tuple of int
        The shape of the whole array.
    first : tuple of int
        The index at which this rank's box begins, its ghosts included.
    ghost : tuple of int
        How many elements at each end are copies of a neighbour's; none by default.

    Examples
    --------
    Rank 1 of 2 has the second half of 1,200 rows, and no ghosts:

    >>> Block(all=(1200, 100), first=(600, 0))
    Block(all=(1200, 100), first=(600, 0), ghost=())
    """

    all: tuple[int, ...]
    first: tuple[int, ...]
    ghost: tuple[int, ...] = ()

    def _describe(self, shape: tuple[int, ...]) -> tuple[int, Dimensions, int]:
        ghost = self.ghost or (0,) * len(shape)
        if not len(shape) == len(self.all) == len(self.first) == len(ghost):
            raise invalid(
                f"{self} does not fit an object of shape {shape}: give a number for each dimension"
            )
        return 2, list(zip(self.all, self.first, shape, ghost)), 0


@dataclasses.dataclass(frozen=True)
class Irregular:
    """Some rows, one rank's after another's: any number of them on each rank.

    Attributes
    ----------
    row : int
        Bytes of a row.

    Examples
    --------
    Particles of six doubles:

    >>> Irregular(6 * 8)
    Irregular(row=48)
    """

    row: int

    def _describe(self, shape: tuple[int, ...]) -> tuple[int, Dimensions, int]:
        return 3, [], self.row
