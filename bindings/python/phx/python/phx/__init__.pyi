import dataclasses
import enum
from collections.abc import Iterable
from os import PathLike
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .objects import Objects as Objects

ALL: Final[int]

class Code(enum.IntEnum):
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
    code: Code
    def __init__(self, code: int, text: str) -> None: ...

class InvalidError(Error, ValueError): ...
class BusyError(Error): ...
class NotFoundError(Error, LookupError): ...
class ExistsError(Error): ...
class NoSpaceError(Error): ...
class NoMemoryError(Error, MemoryError): ...
class CorruptError(Error): ...
class TimedOutError(Error, TimeoutError): ...
class LostError(Error): ...
class ClosedError(Error): ...
class DegradedWarning(UserWarning): ...

class Level(enum.IntEnum):
    COMMITTED = 0
    DURABLE = 1
    REPLICATED = 2
    FLUSHED = 3

class Version(NamedTuple):
    generation: int
    number: int

class VersionInfo(NamedTuple):
    version: Version
    bytes: int
    ranks: int
    level: Level

@dataclasses.dataclass(frozen=True)
class Stats:
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

class Shape(Protocol):
    def said(self, shape: tuple[int, ...]) -> tuple[int, list[tuple[int, int, int, int]], int]: ...

OWN: Final[Shape]
REPLICATED: Final[Shape]

@dataclasses.dataclass(frozen=True)
class Block:
    all: tuple[int, ...]
    first: tuple[int, ...]
    ghost: tuple[int, ...] = ()
    def said(self, shape: tuple[int, ...]) -> tuple[int, list[tuple[int, int, int, int]], int]: ...

@dataclasses.dataclass(frozen=True)
class Irregular:
    row: int
    def said(self, shape: tuple[int, ...]) -> tuple[int, list[tuple[int, int, int, int]], int]: ...

class Checkpoints:
    def __init__(
        self,
        *,
        tier: str | PathLike[str] | None = None,
        run: str | None = None,
        rank: int = 0,
        ranks: int = 1,
        replicas: int | None = None,
        copies: int = 0,
        parity: int = 0,
        replicate_every: int = 1,
        staging: int | None = None,
        memory: str | PathLike[str] | None = None,
        meet: str | None = None,
        key: str | PathLike[str] | None = None,
        profile: str | None = None,
        timeout: float | None = None,
        helper: bool = True,
        processors: Iterable[int] = (),
        same_node: bool = False,
        mprotect: bool = False,
        encrypt: bool = False,
        external: str | PathLike[str] | None = None,
        flush_every: int | None = None,
        flush_rate: int | None = None,
        transport: str | None = None,
    ) -> None: ...
    def __enter__(self) -> Checkpoints: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def close(self) -> None: ...
    def zeros(
        self,
        key: str,
        shape: int | Iterable[int],
        dtype: npt.DTypeLike = float,
        *,
        shape_of: Shape = ...,
        transient: bool = False,
        precopy: bool | None = None,
        versions: int = 1,
        persistence: int = Level.COMMITTED,
        replicas: int | None = None,
    ) -> np.ndarray[Any, Any]: ...
    def create(
        self,
        key: str,
        size: int,
        unit: int = 1,
        *,
        shape_of: Shape = ...,
        transient: bool = False,
        precopy: bool | None = None,
        versions: int = 1,
        persistence: int = Level.COMMITTED,
        replicas: int | None = None,
    ) -> memoryview: ...
    def register(
        self,
        key: str,
        array: object,
        *,
        shape_of: Shape = ...,
        transient: bool = False,
        precopy: bool | None = None,
        versions: int = 1,
        persistence: int = Level.COMMITTED,
        replicas: int | None = None,
    ) -> None: ...
    def destroy(self, key: str) -> None: ...
    def restart(self, version: tuple[int, int] | None = None) -> Version | None: ...
    def commit(self) -> Version: ...
    def wait(self, version: tuple[int, int], level: int = Level.DURABLE, timeout: float | None = None) -> None: ...
    def due(self, interval: float) -> bool: ...
    def versions(self) -> list[VersionInfo]: ...
    def stats(self) -> Stats: ...

class ObjectInfo(NamedTuple):
    key: str
    bytes: int
    unit: int
    shape: tuple[int, ...] | None

class Reader:
    version: Version
    level: Level
    of: int
    ranks: list[int]
    def objects(self, rank: int = 0) -> list[ObjectInfo]: ...
    def map(self, key: str, rank: int = 0) -> memoryview: ...
    def array(self, key: str, rank: int = 0, dtype: npt.DTypeLike = float, shape: int | Iterable[int] | None = None) -> npt.NDArray[Any]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Reader: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

def open_version(
    run: str | None = None,
    *,
    tier: str | PathLike[str] | None = None,
    version: tuple[int, int] | None = None,
    verify: bool = True,
) -> Reader: ...
