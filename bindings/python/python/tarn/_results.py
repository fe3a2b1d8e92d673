"""Runs, plans and datasets as results: frozen dataclasses, made from tarn's JSON."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Literal, TypeVar

Json = dict[str, Any]
T = TypeVar("T")
OutcomeName = Literal["done", "failed", "refused", "interrupted", "unfinished"]


def _time(seconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that a run moved, and those that it did not have to move.

    Attributes
    ----------
    external_in, external_out : int
        From the external store to nodes, and back.
    peer : int
        Between nodes.
    promote, demote : int
        To a faster and to a slower tier of the same node.
    retained : int
        Bytes of inputs that were stored where they were read.
    """

    external_in: int
    external_out: int
    peer: int
    promote: int
    demote: int
    retained: int


@dataclasses.dataclass(frozen=True)
class StepSummary:
    """The work of all instances of a step together.

    Attributes
    ----------
    name : str
        The step.
    run, reused, failed, open : int
        Instances that ran, that an earlier run had done, that failed, and that did not end.
    attempts : int
        Attempts, retries included.
    staging, waiting, running, committing : float
        Seconds until the inputs were there, from then to the start, in the command, and in
        hashing and committing the output.
    input, retained, output : int
        Bytes of inputs, of these those that were stored on the node, and bytes of outputs.
    memory : int
        Bytes: the largest resident set of a process.
    """

    name: str
    run: int
    reused: int
    failed: int
    open: int
    attempts: int
    staging: float
    waiting: float
    running: float
    committing: float
    input: int
    retained: int
    output: int
    memory: int

    @classmethod
    def _of(cls, value: Json) -> StepSummary:
        count = value["instances"]
        return cls(
            name=value["name"],
            run=count["run"],
            reused=count["reused"],
            failed=count["failed"],
            open=count["open"],
            attempts=count["attempts"],
            staging=_seconds(value["staging_ns"]),
            waiting=_seconds(value["waiting_ns"]),
            running=_seconds(value["run_ns"]),
            committing=_seconds(value["commit_ns"]),
            input=value["input"],
            retained=value["retained"],
            output=value["output"],
            memory=value["memory"],
        )


@dataclasses.dataclass(frozen=True)
class Summary:
    """The work of a run.

    Attributes
    ----------
    run, workflow, policy : str
        Names of the run, of its workflow and of its policy.
    outcome : {"done", "failed", "refused", "interrupted", "unfinished"}
        How it ended.
    started : datetime.datetime
        When it began, in UTC.
    makespan : float
        Seconds from its start to its end.
    resumed : int
        How often it was resumed.
    bytes : Traffic
        The bytes that moved.
    run_instances, reused_instances, failed_instances : int
        Instances that ran, that an earlier run had done, and that failed.
    steps : tuple of StepSummary
        The steps, in the order of the workflow file.
    notes : tuple of str
        Notes and warnings that tarn printed.
    raw : dict
        All of tarn's JSON (nodes, energy, estimates).
    """

    run: str
    workflow: str
    policy: str
    outcome: OutcomeName
    started: datetime.datetime
    makespan: float
    resumed: int
    bytes: Traffic
    run_instances: int
    reused_instances: int
    failed_instances: int
    steps: tuple[StepSummary, ...]
    notes: tuple[str, ...] = ()
    raw: Json = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def _of(cls, value: Json, notes: list[str]) -> Summary:
        count = value["instances"]
        return cls(
            run=value["run"],
            workflow=value["workflow"],
            policy=value["policy"],
            outcome=value["outcome"],
            started=_time(value["started"]),
            makespan=_seconds(value["makespan_ns"]),
            resumed=value["resumed"],
            bytes=_known(Traffic, value["bytes"]),
            run_instances=count["run"],
            reused_instances=count["reused"],
            failed_instances=count["failed"],
            steps=tuple(StepSummary._of(step) for step in value["steps"]),
            notes=tuple(notes),
            raw=value,
        )


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """An instance as the plan has it.

    Attributes
    ----------
    step : str
        The step, with its element: ``count[one.txt]``.
    at : float
        Estimated seconds from the start of the run until it starts.
    nodes : tuple of str
        The nodes it runs on; empty if an earlier run has done it.
    partitions : tuple of str
        The bytes of each tier that its partitions take.
    why : str
        The reason for its nodes.
    """

    step: str
    at: float
    nodes: tuple[str, ...]
    partitions: tuple[str, ...]
    why: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work that a run would do.

    Attributes
    ----------
    steps : tuple of PlannedStep
        The instances, in the order in which they start.
    summary : Summary
        Estimated totals: makespan and bytes.
    notes : tuple of str
        Noteworthy facts.
    raw : dict
        All of tarn's JSON (the most that each tier holds).
    """

    steps: tuple[PlannedStep, ...]
    summary: Summary
    notes: tuple[str, ...]
    raw: Json = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def _of(cls, value: Json, notes: list[str]) -> Plan:
        steps = (
            PlannedStep(
                step=line["step"],
                at=_seconds(line["at_ns"]),
                nodes=tuple(line["nodes"]),
                partitions=tuple(line.get("partitions", ())),
                why=line["why"],
            )
            for line in value["plan"]
        )
        summary = Summary._of(value["summary"], [])
        return cls(tuple(steps), summary, (*notes, *value["notes"]), value)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of a run: `what` failed (``count[one.txt]``), and the `message`."""

    what: str
    message: str


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The state of a run.

    Attributes
    ----------
    run, workflow, policy : str
        Names of the run, of its workflow and of its policy.
    outcome : {"done", "failed", "refused", "interrupted", "unfinished"}
        How it ended; "unfinished" while it runs, and when its process died.
    alive : bool
        Whether its process is there.
    elapsed : float
        Seconds since its start, or until its end.
    waiting, staging, running, committed, reused, failed : int
        Instances by state.
    failures : tuple of Failure
        The first of what has failed for good or at its last attempt.
    raw : dict
        All of tarn's JSON (running instances, transfers, nodes, tiers).
    """

    run: str
    workflow: str
    policy: str
    outcome: OutcomeName
    alive: bool
    elapsed: float
    waiting: int
    staging: int
    running: int
    committed: int
    reused: int
    failed: int
    failures: tuple[Failure, ...]
    raw: Json = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def _of(cls, value: Json) -> RunStatus:
        count = value["counts"]
        return cls(
            run=value["run"],
            workflow=value["workflow"],
            policy=value["policy"],
            outcome=value["outcome"],
            alive=bool(value.get("alive")),
            elapsed=_seconds(value["elapsed_ns"]),
            waiting=count["waiting"],
            staging=count["staging"],
            running=count["running"],
            committed=count["committed"],
            reused=count["reused"],
            failed=count["failed"],
            failures=tuple(_known(Failure, one) for one in value.get("failures", ())),
            raw=value,
        )


@dataclasses.dataclass(frozen=True)
class Decision:
    """Something that a run did, and why.

    Attributes
    ----------
    when : float
        Seconds since the start of the run.
    what : str
        The action, the note, or the failure.
    why : str
        The reason.
    times : int
        How often in a row.
    log_tail : str or None
        Of a failed attempt: the last lines of its log.
    """

    when: float
    what: str
    why: str
    times: int
    log_tail: str | None

    @classmethod
    def _of(cls, value: Json) -> Decision:
        return _known(cls, {**value, "when": _seconds(value["when"])})


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A version of a dataset in one place.

    Attributes
    ----------
    workflow, dataset : str
        Its names: ``foam/mesh`` is dataset `mesh` of workflow `foam`.
    version : int
        The number of the version.
    place : str
        NODE/TIER, or a folder outside.
    parts : int
        Parts that are there.
    bytes, stored : int
        Bytes of its files, and bytes of the tier that they take.
    kept : bool
        Whether it is kept when no run needs it.
    kept_until : datetime.datetime or None
        Until when it is kept or cached; None for no end.
    cached : bool
        Whether it is kept as long as its space is not needed.
    """

    workflow: str
    dataset: str
    version: int
    place: str
    parts: int
    bytes: int
    stored: int
    kept: bool
    kept_until: datetime.datetime | None
    cached: bool

    @classmethod
    def _of(cls, value: Json) -> Dataset:
        until = value["kept_until"]
        return _known(cls, {**value, "kept_until": None if until is None else _time(until)})


@dataclasses.dataclass(frozen=True)
class Replica:
    """A replica of a part of a dataset.

    Attributes
    ----------
    dataset : str
        The dataset.
    version : int
        The number of its version.
    place : str
        NODE/TIER, or a folder outside.
    path : str
        Its folder.
    bytes : int
        Bytes of its files.
    state : {"whole", "elsewhere", "damaged"} or None
        Of `tarn.data.verify`: it is as it was published, or another node has it, or it is not.
    why : str
        Of a damaged one: the difference.
    """

    dataset: str
    version: int
    place: str
    path: str
    bytes: int
    state: Literal["whole", "elsewhere", "damaged"] | None = None
    why: str = ""


def _known(kind: type[T], value: Json) -> T:
    """A dataclass of the fields that it knows; a newer tarn may say more."""
    of: Any = kind
    names = {field.name for field in dataclasses.fields(of)}
    return kind(**{name: one for name, one in value.items() if name in names})
