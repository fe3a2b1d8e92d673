"""Datasets on the nodes: the commands `tarn data …`.

A dataset is named `mesh`, or `foam/mesh` where several workflows have one of that name. Without
`state`, the state folder is $TARN_STATE, or `.tarn` in the current folder. Errors are those of
`tarn.runs`. Objects of a node's object store are `tarn.objects`.

Examples
--------
>>> import pathlib, tarn
>>> _ = pathlib.Path("grid").mkdir()
>>> _ = pathlib.Path("grid/cells").write_bytes(bytes(1000))
>>> put = tarn.data.put("grid", "mesh", keep="1d", local=True)
>>> [(one.dataset, one.bytes, one.kept) for one in tarn.data.list()]
[('mesh', 1000, True)]
>>> [one.state for one in tarn.data.verify("mesh")]
['whole']
>>> tarn.data.pin("mesh")                       # until it is released or removed
>>> tarn.data.get("mesh", "copy")
>>> pathlib.Path("copy/cells").stat().st_size
1000
>>> tarn.data.rm("mesh")
>>> tarn.data.list()
[]
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable

from . import _command
from ._command import Path, option
from ._results import Dataset, Replica, Summary, _known
from .runs import finish, machine


def list(*, state: Path | None = None) -> builtins.list[Dataset]:
    """The datasets of the runs here that are stored on nodes or were delivered.

    Returns
    -------
    list of Dataset
        One for each version and place. Datasets of a site are not among them:
        `tarn data ls --site`.
    """
    output = _command.call(["data", "ls"], state=state)
    # If no run was here, the command lists the site's, which have no workflow of this folder.
    return [Dataset._of(line) for line in output.lines if "workflow" in line]


def where(dataset: str, *, state: Path | None = None) -> builtins.list[Replica]:
    """The replicas of a dataset, those of older versions too.

    Returns
    -------
    list of Replica
        Each with its place and its bytes.

    Raises
    ------
    NotFoundError
        The dataset is not stored anywhere.

    Examples
    --------
    >>> import pathlib
    >>> _ = pathlib.Path("found").mkdir()
    >>> _ = pathlib.Path("found/cells").write_bytes(bytes(1000))
    >>> _ = put("found", "found", local=True)
    >>> [one.bytes for one in where("found")]
    [1000]
    >>> rm("found")
    """
    output = _command.call(["data", "where"], (), [dataset], state=state)
    return [_known(Replica, line) for line in output.lines]


def verify(
    dataset: str, *, run: str | None = None, state: Path | None = None
) -> builtins.list[Replica]:
    """Reads all replicas of a dataset again, and compares them with what was published.

    Parameters
    ----------
    dataset : str
        The dataset.
    run : str, optional
        As this run has made it; without one the newest that has made any of it.
    state : path, optional
        The state folder.

    Returns
    -------
    list of Replica
        Each with its `state`.

    Raises
    ------
    WorkflowFailedError
        A replica is damaged, or the dataset is not complete.
    NotFoundError
        The dataset is not stored anywhere.
    """
    output = _command.call(["data", "verify"], option("--run", run), [dataset], state=state)
    return [_known(Replica, line) for line in output.lines]


def put(
    path: Path,
    name: str,
    *,
    keep: str = "forever",
    nodes: int | None = None,
    tiers: Iterable[str] = (),
    local: bool = False,
    state: Path | None = None,
) -> Summary | None:
    """Copies a folder into a tier, as a dataset of its own.

    Parameters
    ----------
    path : path
        The folder, or a tree of an object store: ``s3://BUCKET/PREFIX/``.
    name : str
        The dataset's name. Older data of that name is removed when this is complete.
    keep : str
        How long it is kept: a time such as "7d", or "forever".
    nodes, tiers, local, state
        As of `tarn.run`.

    Returns
    -------
    Summary or None
        The copy's totals; None if it was already there, unchanged.

    Raises
    ------
    NotFoundError
        There is no such folder.
    NoSpaceError
        No tier can hold it.
    InvalidError
        The name or the time is wrong.
    """
    words = [*machine(nodes, tiers, local, None), f"--keep={keep}"]
    output = _command.call(["data", "put"], words, [path, name], state=state, check=False)
    if output.error is None and not output.lines:
        return None
    return finish(output)


def get(dataset: str, dest: Path, *, run: str | None = None, state: Path | None = None) -> None:
    """Copies a dataset out of the nodes.

    Parameters
    ----------
    dataset : str
        The dataset.
    dest : path
        A folder that does not exist yet, or ``s3://BUCKET/PREFIX/`` where nothing is yet.
    run : str, optional
        As this run has made it; without one the newest that has made any of it.
    state : path, optional
        The state folder.

    Raises
    ------
    WorkflowFailedError
        Some instances of its step have failed: the output of the others was copied.
    NotFoundError
        The dataset is not stored anywhere.
    """
    _command.call(["data", "get"], option("--run", run), [dataset, dest], state=state)


def drain(
    dataset: str, dest: Path, *, run: str | None = None, state: Path | None = None
) -> None:
    """Copies a dataset out as `get` does, verifies it there, and frees its space on the nodes.

    Parameters and errors are those of `get`.

    Examples
    --------
    >>> import pathlib
    >>> _ = pathlib.Path("drained").mkdir()
    >>> _ = pathlib.Path("drained/cells").write_bytes(bytes(1000))
    >>> _ = put("drained", "drained", local=True)
    >>> drain("drained", "outside")
    >>> pathlib.Path("outside/cells").stat().st_size
    1000
    """
    _command.call(["data", "drain"], option("--run", run), [dataset, dest], state=state)


def pin(dataset: str, *, state: Path | None = None) -> None:
    """Keeps a dataset until it is released or removed.

    Raises
    ------
    InvalidError
        The dataset is only cached: set ``keep`` in the workflow file.
    NotFoundError
        The dataset is not stored anywhere.
    """
    _command.call(["data", "pin"], (), [dataset], state=state)


def release(dataset: str, *, state: Path | None = None) -> None:
    """Allows a dataset that no run needs to be removed now, with all its versions.

    Raises
    ------
    NotFoundError
        The dataset is not stored anywhere.
    """
    _command.call(["data", "release"], (), [dataset], state=state)


def rm(dataset: str, *, state: Path | None = None) -> None:
    """Removes a dataset from the nodes; copies delivered outside stay.

    Raises
    ------
    NotFoundError
        The dataset is not stored on a node.
    BusyError
        A run uses it.
    """
    _command.call(["data", "rm"], (), [dataset], state=state)
