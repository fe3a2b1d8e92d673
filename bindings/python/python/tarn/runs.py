"""Runs of workflows: the commands `tarn run`, `plan`, `resume`, `status`, `why` and `cancel`.

Each function starts the command `tarn` (the one in the PATH, or what $TARN_PROGRAM names) and
returns what it prints as JSON. A command that fails raises a `tarn.Error`, whose `code` is the
command's exit code. `run`, `resume` and `tarn.data.put` return when the run has ended; Ctrl-C
stops it in good order, and `resume` continues it.

Without `state`, the state folder is $TARN_STATE, or `.tarn` beside the workflow file (`run`,
`plan`) or in the current folder (sbatch scripts, and all other functions).

Examples
--------
>>> import pathlib, tarn
>>> _ = pathlib.Path("books").mkdir()
>>> _ = pathlib.Path("books/one.txt").write_text("three short words")
>>> _ = pathlib.Path("words.toml").write_text('''
... name = "words"
... [data.text]
... source = "books"
... [data.total]
... dest = "result"
... [[step]]
... name = "count"
... run = "cat $TARN_text/* | wc -w > $TARN_total/words"
... in = ["text"]
... out = ["total"]
... ''')
>>> tarn.plan("words.toml", local=True).steps[0].nodes
('node0',)
>>> done = tarn.run("words.toml", local=True)
>>> done.outcome, done.run_instances, pathlib.Path("result/words").read_text().strip()
('done', 1, '3')
>>> tarn.run("words.toml", local=True).reused_instances     # nothing has changed
1
>>> tarn.status().outcome
'done'
>>> tarn.why("count", run=done.run)[0].what
'place count on node0'
>>> try:
...     tarn.why("paint")
... except tarn.NotFoundError as error:
...     print(error.code.name, error.message.split(";")[0])
NOT_FOUND `paint` is no step, dataset, node, tier or transfer of this run
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from . import _command
from ._command import Output, Path, option
from ._results import Decision, Plan, RunStatus, Summary
from .errors import Error, ExitCode, InternalError, InvalidError, WorkflowFailedError

Verify = Literal["none", "copy", "readback"]
Record = dict[str, Any]

# Failures that the message of a failed run names.
_NAMED_FAILURES = 5


def machine(
    nodes: int | None,
    tiers: Iterable[str],
    local: bool,
    transport: str | None,
) -> list[str]:
    """The options that describe the machine."""
    return [
        *option("--nodes", nodes),
        *(word for tier in tiers for word in option("--tier", tier)),
        *option("--local", local),
        *option("--transport", transport),
    ]


def _options(
    nodes: int | None,
    tiers: Iterable[str],
    local: bool,
    transport: str | None,
    policy: str | None,
    verify: Verify | None,
    cache: int | None,
    fail_fast: bool,
    more: Iterable[str],
) -> list[str]:
    return [
        *machine(nodes, tiers, local, transport),
        *option("--policy", policy),
        *option("--verify", verify),
        *option("--cache", cache),
        *option("--fail-fast", fail_fast),
        *more,
    ]


def _files(workflow: Path | Iterable[Path]) -> list[Path]:
    files = [workflow] if isinstance(workflow, (str, os.PathLike)) else list(workflow)
    if not files:
        hint = "name a workflow file, or at least one sbatch script"
        raise InvalidError(ExitCode.USAGE, "there is no workflow: the list of files is empty", hint)
    return files


def finish(output: Output) -> Summary:
    """The summary of a run that has ended; raises if it has not ended well."""
    found = [line for line in output.lines if "makespan_ns" in line]
    summary = Summary._of(found[-1], output.notes) if found else None
    error = output.error
    if error is None:
        if summary is None:
            raise InternalError(ExitCode.INTERNAL, "tarn has printed no summary of its run")
        return summary
    if isinstance(error, WorkflowFailedError) and summary is not None:
        why = _failures(summary)
        error = WorkflowFailedError(error.code, "\n".join([error.message, *why]), error.hint)
        error.summary = summary
    raise error


def _failures(summary: Summary) -> list[str]:
    """The failures of a run, a line each; none if its state cannot be read."""
    state = summary.raw.get("state")
    if state is None:
        return []
    try:
        failures = status(summary.run, state=state).failures
    except Error:
        return []
    return [f"{failure.what}: {failure.message}" for failure in failures[:_NAMED_FAILURES]]


def run(
    workflow: Path | Iterable[Path],
    *,
    nodes: int | None = None,
    tiers: Iterable[str] = (),
    local: bool = False,
    transport: str | None = None,
    policy: str | None = None,
    verify: Verify | None = None,
    cache: int | None = None,
    fail_fast: bool = False,
    report: Path | None = None,
    state: Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    options: Iterable[str] = (),
) -> Summary:
    """Runs a workflow; unchanged instances of an earlier run do not run again.

    Parameters
    ----------
    workflow : path or iterable of paths
        The workflow file, or sbatch scripts with `#TARN` lines, which are a workflow together.
    nodes : int, optional
        Nodes to divide this machine into (1); in an allocation of Slurm: how many of its nodes
        (all).
    tiers : iterable of str
        ``NAME=PATH[:SIZE]`` each, fast to slow. By default a tmpfs, sized by the free memory.
    local : bool
        This machine only, even in an allocation of Slurm.
    transport : str, optional
        How nodes of an allocation read each other's files: "tcp", "sealed", "libfabric".
    policy : str, optional
        Which step starts when and where ("data"); `tarn run --help` lists them.
    verify : {"none", "copy", "readback"}, optional
        The least verification of transfers ("copy").
    cache : int, optional
        Percent of each tier that cached data may take.
    fail_fast : bool
        Whether nothing new starts once a step has failed for good.
    report : path, optional
        A second place for the report.
    state : path, optional
        The state folder.
    on_record : callable, optional
        Called with each record of the run's log, as soon as it is durable: a dict with `seq`,
        `now` (ns since the start), `event` and `actions` (docs/reference/formats.md).
    options : iterable of str
        Further options of `tarn run`, such as ``["--oversubscribe"]``.

    Returns
    -------
    Summary
        The work of the run.

    Raises
    ------
    WorkflowFailedError
        A step or a transfer failed. `error.summary` is what was done.
    InvalidError
        The workflow file or an option is wrong; nothing was started.
    NoSpaceError
        The machine cannot hold what the workflow needs; nothing was started.
    BusyError
        Another run of this workflow is active.
    CancelledError
        A signal or `cancel` stopped the run.
    NotFoundError
        There is no such file, or no program `tarn`.
    """
    words = _options(
        nodes, tiers, local, transport, policy, verify, cache, fail_fast,
        [*option("--report", None if report is None else os.fspath(report)), *options],
    )
    output = _command.call(
        ["run"], words, _files(workflow), state=state, on_record=on_record, check=False
    )
    return finish(output)


def plan(
    workflow: Path | Iterable[Path],
    *,
    nodes: int | None = None,
    tiers: Iterable[str] = (),
    local: bool = False,
    policy: str | None = None,
    verify: Verify | None = None,
    cache: int | None = None,
    state: Path | None = None,
    options: Iterable[str] = (),
) -> Plan:
    """The work that `run` would do: order, placement, bytes that move, estimated times.

    Parameters
    ----------
    workflow, nodes, tiers, local, policy, verify, cache, state, options
        As of `run`.

    Returns
    -------
    Plan
        Nothing is started and nothing moves.

    Raises
    ------
    InvalidError, NoSpaceError, NotFoundError
        As of `run`.
    """
    words = _options(nodes, tiers, local, None, policy, verify, cache, False, options)
    output = _command.call(["plan"], words, _files(workflow), state=state)
    return Plan._of(output.lines[-1], output.notes)


def resume(
    run: str | None = None,
    *,
    report: Path | None = None,
    state: Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    options: Iterable[str] = (),
) -> Summary:
    """Continues an interrupted or failed run; committed steps do not run again.

    Parameters
    ----------
    run : str, optional
        The run; without one the newest.
    report, state, on_record, options
        As of `run`; options are those of `tarn resume`.

    Returns
    -------
    Summary
        The work of the run, before it was interrupted too.

    Raises
    ------
    InvalidError
        An input or a script of a step that must run has changed: use `run`.
    Error
        As of `run`.

    Examples
    --------
    A step that fails until a file is there:

    >>> import pathlib
    >>> flag = pathlib.Path("ready").absolute()
    >>> _ = pathlib.Path("late.toml").write_text(f'''
    ... name = "late"
    ... [data.answer]
    ... dest = "answer"
    ... [[step]]
    ... name = "wait"
    ... run = "cp {flag} $TARN_answer/"
    ... out = ["answer"]
    ... ''')
    >>> try:
    ...     run("late.toml", local=True)
    ... except WorkflowFailedError as error:
    ...     print(error.summary.outcome)
    failed
    >>> flag.touch()
    >>> resume().outcome
    'done'
    """
    words = [*option("--report", None if report is None else os.fspath(report)), *options]
    output = _command.call(
        ["resume"], words, _named(run), state=state, on_record=on_record, check=False
    )
    return finish(output)


def _named(run: str | None) -> list[Path]:
    return [] if run is None else [run]


def status(run: str | None = None, *, state: Path | None = None) -> RunStatus:
    """The state of a run, or its end.

    Parameters
    ----------
    run : str, optional
        The run; without one the newest.
    state : path, optional
        The state folder.

    Returns
    -------
    RunStatus
        Its steps, transfers and failures, with sizes in bytes and times in seconds.

    Raises
    ------
    NotFoundError
        There is no such run.
    """
    output = _command.call(["status"], (), _named(run), state=state)
    return RunStatus._of(output.lines[-1])


def watch(run: str | None = None, *, state: Path | None = None) -> Iterator[RunStatus]:
    """The state of a run, once a second until it has ended; arguments as of `status`.

    Yields
    ------
    RunStatus
        The last one says how the run ended.

    Examples
    --------
    >>> import pathlib
    >>> _ = pathlib.Path("seen.toml").write_text('''
    ... name = "seen"
    ... [data.one]
    ... dest = "seen"
    ... [[step]]
    ... name = "make"
    ... run = "echo 1 > $TARN_one/one"
    ... out = ["one"]
    ... ''')
    >>> done = run("seen.toml", local=True)
    >>> [one.outcome for one in watch(done.run)]
    ['done']
    """
    for line in _command.stream(["status", "--watch"], _named(run), state=state):
        yield RunStatus._of(line)


def why(
    what: str = "", *, run: str | None = None, state: Path | None = None
) -> list[Decision]:
    """Why something happened or waits.

    Parameters
    ----------
    what : str
        A step (``count``), an instance (``count[one.txt]``), a dataset, a node or a tier; by
        default the run itself: its failures.
    run : str, optional
        The run; without one the newest.
    state : path, optional
        The state folder.

    Returns
    -------
    list of Decision
        The decisions about it, in the order of time.

    Raises
    ------
    NotFoundError
        The run has nothing of that name.
    """
    words: list[Path] = [what] if what else []
    output = _command.call(["why"], option("--run", run), words, state=state)
    return [Decision._of(answer) for answer in output.lines[-1]["answers"]]


def cancel(run: str | None = None, *, state: Path | None = None) -> None:
    """Stops a run, and returns when it has ended; `resume` continues it.

    Parameters
    ----------
    run : str, optional
        The run; without one the newest.
    state : path, optional
        The state folder.

    Raises
    ------
    NotFoundError
        No such run is running.
    BusyError
        It has not ended within 120 s.
    """
    _command.call(["cancel"], (), _named(run), state=state)
