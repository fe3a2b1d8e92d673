"""Starts the command `tarn` and reads what it prints: JSON on stdout, messages on stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO, Any

from . import errors
from .errors import Error, ExitCode

Path = str | os.PathLike[str]
Json = dict[str, Any]

_KINDS: dict[ExitCode, type[Error]] = {
    ExitCode.WORKFLOW_FAILED: errors.WorkflowFailedError,
    ExitCode.USAGE: errors.InvalidError,
    ExitCode.INVALID_WORKFLOW: errors.InvalidError,
    ExitCode.NO_SPACE: errors.NoSpaceError,
    ExitCode.STATE: errors.StateError,
    ExitCode.BUSY: errors.BusyError,
    ExitCode.NOT_FOUND: errors.NotFoundError,
    ExitCode.INTERNAL: errors.InternalError,
    ExitCode.INTERRUPTED: errors.CancelledError,
    ExitCode.TERMINATED: errors.CancelledError,
}

# The advice of docs/reference/exit-codes.md, in the terms of this package. An exit code that is
# not here has its remedy in the message.
_HINTS = {
    ExitCode.WORKFLOW_FAILED: "tarn.why() says why; mend the cause, then tarn.resume()",
    ExitCode.NO_SPACE: "tarn.plan() shows what is needed: more or larger tiers, or fewer bytes",
    ExitCode.BUSY: "tarn.status() shows the run: wait for it, or tarn.cancel()",
    ExitCode.INTERNAL: "report it with this message; tarn.resume() continues the run",
    ExitCode.INTERRUPTED: "tarn.resume() continues the run",
    ExitCode.TERMINATED: "tarn.resume() continues the run",
}

# Lines on stderr that do not say why a command failed.
_NOT_WHY = ("note: ", "warning: ", "For more information", "Usage: ")

# Seconds after Ctrl-C within which a terminal's signal has reached the command too. A second
# one would kill the steps instead of stopping them.
_OWN_SIGNAL = 3.0


def program() -> str:
    """The command: the one that $TARN_PROGRAM names, or `tarn` in the PATH."""
    named = os.environ.get("TARN_PROGRAM")
    found = shutil.which(named or "tarn")
    if found is None:
        what = f"$TARN_PROGRAM names {named}, which is no program" if named else "not in the PATH"
        hint = "build it (make build), then add its folder to the PATH or set TARN_PROGRAM"
        raise errors.NotFoundError(ExitCode.NOT_FOUND, f"cannot start tarn: {what}", hint)
    return found


def option(name: str, value: object) -> list[str]:
    """A value as an option of the command line; none for None and False."""
    if value is None or value is False:
        return []
    return [name] if value is True else [f"{name}={value}"]


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a command: lines of JSON, but for records of a run's log, and messages."""

    lines: list[Json]
    messages: str
    error: Error | None = None

    @property
    def notes(self) -> list[str]:
        """The notes and warnings among its messages."""
        kept = ("note: ", "warning: ")
        return [line for line in self.messages.splitlines() if line.startswith(kept)]


def call(
    command: Sequence[str],
    options: Sequence[str] = (),
    words: Sequence[Path] = (),
    *,
    state: Path | None = None,
    on_record: Callable[[Json], None] | None = None,
    check: bool = True,
) -> Output:
    """Runs a command to its end; raises the `Error` that its exit code means, if `check`.

    `words` are names of the user's: none of them is taken for an option. `on_record` is called
    with each record of a run's log. Ctrl-C first stops the command in good order.
    """
    kept: list[Json] = []
    with tempfile.TemporaryFile() as messages:
        with _start(command, options, words, state, messages) as process:
            interrupted = not _read(process, kept, on_record)
        messages.seek(0)
        text = messages.read().decode(errors="replace")
    if interrupted:
        raise KeyboardInterrupt
    if process.returncode:
        error = fail(process.returncode, text)
        if check:
            raise error
        return Output(kept, text, error)
    return Output(kept, text)


def stream(
    command: Sequence[str], words: Sequence[Path] = (), *, state: Path | None = None
) -> Iterator[Json]:
    """The lines of a command as it prints them; it ends with the iterator."""
    with tempfile.TemporaryFile() as messages:
        with _start(command, (), words, state, messages) as process:
            try:
                yield from _lines(process)
            finally:
                if process.poll() is None:
                    process.terminate()
        # An iterator that was closed does not come here.
        if process.returncode:
            messages.seek(0)
            raise fail(process.returncode, messages.read().decode(errors="replace"))


def _start(
    command: Sequence[str],
    options: Sequence[str],
    words: Sequence[Path],
    state: Path | None,
    messages: IO[bytes],
) -> subprocess.Popen[bytes]:
    before = [program(), "--json", *option("--state", None if state is None else os.fspath(state))]
    behind = ["--", *(os.fspath(word) for word in words)] if words else []
    return subprocess.Popen(
        [*before, *command, *options, *behind],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=messages,
    )


def _lines(process: subprocess.Popen[bytes]) -> Iterator[Json]:
    assert process.stdout is not None
    for line in process.stdout:
        # Text for people is passed over.
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


class _Interrupt:
    """Ctrl-C while a command runs: it is sent on to the command, in good time, and raises nothing.

    An exception would come between any two instructions: a record that was being read, or handed
    to `on_record`, would be lost. Only a second Ctrl-C raises. Signals come to the main thread
    alone, and a handler of the program's own is left as it is: what it raises is passed on too.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._timer = threading.Timer(_OWN_SIGNAL, process.send_signal, [signal.SIGINT])
        self._timer.daemon = True
        self._first = threading.Lock()

    def __enter__(self) -> _Interrupt:
        is_main = threading.current_thread() is threading.main_thread()
        self._replaces = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._replaces:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._replaces:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._timer.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.pass_on():
            signal.default_int_handler(number, frame)

    @property
    def came(self) -> bool:
        """Whether there was one."""
        return self._first.locked()

    def pass_on(self) -> bool:
        """Sends it on, unless its terminal does; false for all but the first."""
        if not self._first.acquire(blocking=False):
            return False
        self._timer.start()
        return True

    def reached_command(self) -> None:
        """The command has stopped its steps: it needs no signal of ours."""
        self._timer.cancel()


def _read(
    process: subprocess.Popen[bytes],
    kept: list[Json],
    on_record: Callable[[Json], None] | None,
) -> bool:
    """Reads all that it prints; whether no Ctrl-C came meanwhile."""
    with _Interrupt(process) as interrupt:
        while True:
            try:
                for line in _lines(process):
                    if "event" not in line:
                        kept.append(line)
                        continue
                    if line["event"] == "interrupted":
                        interrupt.reached_command()
                    if on_record is not None:
                        on_record(line)
                process.wait()
                return not interrupt.came
            except KeyboardInterrupt:
                if not interrupt.pass_on():
                    process.terminate()
                    raise
            except BaseException:
                process.terminate()
                raise


def fail(code: int, messages: str) -> Error:
    """The error for an exit code above 0 and what was printed on stderr."""
    causes, helps = _divide(messages)
    text = "\n".join(causes) or "tarn said nothing"
    try:
        exit_code = ExitCode(code)
    except ValueError:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return errors.InternalError(ExitCode.INTERNAL, f"tarn was ended by {how}: {text}")
    return _KINDS[exit_code](exit_code, text, " ".join(helps) or _HINTS.get(exit_code))


def _divide(messages: str) -> tuple[list[str], list[str]]:
    """The lines that say what failed, and those that say what to do."""
    causes: list[str] = []
    helps: list[str] = []
    is_help = False
    for line in messages.splitlines():
        words = line.strip()
        if words.startswith("help: ") and line != words:
            is_help = True
            helps.append(words.removeprefix("help: "))
        elif is_help and words:
            helps.append(words)
        else:
            is_help = False
            if words and not words.startswith(_NOT_WHY):
                causes.append(line.removeprefix("error: "))
    return causes, helps
