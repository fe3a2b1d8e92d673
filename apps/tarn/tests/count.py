#!/usr/bin/env python3
"""count.py STEPS PAUSE [wait|tcp|alone PORT [daemon]|daemon|hold BYTES|ghost BYTES]: counts, with files, pipes, a child, a thread, a timer and clocks, and
knows nothing of images. If one of these does not resume where it was, it stops, or its results are wrong. When it is alone, the same holds for
connections, shared memory and a terminal, and it reaches nobody else. With `wait` or `alone PORT` it counts beyond STEPS until the file `go` is there: however slow
the machine is, it has not ended before its test lets it."""
import itertools
import mmap
import os
import pty
import queue
import signal
import socket
import stat
import sys
import tempfile
import threading
import time

steps, pause, more = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
result = os.environ["TARN_result"]
ticks = 0


def tick(*_):
    global ticks
    ticks += 1


def worker(requests, answers):
    with os.fdopen(requests) as lines, os.fdopen(answers, "w", buffering=1) as out:
        for line in lines:
            print(int(line) ** 2, file=out)
    os._exit(0)


alone = more[:1] == ["alone"]
if alone:
    listening = socket.create_server((socket.gethostname(), 0))
    if os.fork() == 0:
        end = socket.create_connection(listening.getsockname()).detach()
        worker(end, os.dup(end))
    connection = listening.accept()[0].detach()
    ask, answer = os.fdopen(os.dup(connection), "w", buffering=1), os.fdopen(connection)
    # Data on its way stays so until the end.
    sends = socket.create_connection(listening.getsockname())
    unread = listening.accept()[0].makefile()
    kept = open("/dev/shm/tarn-test-count", "w+")
    kept.truncate(mmap.PAGESIZE)
    shared = mmap.mmap(kept.fileno(), mmap.PAGESIZE)
    terminal, behind = pty.openpty()
    try:
        socket.create_connection(("127.0.0.1", int(more[1])))
        sys.exit("it reaches a process that is not its own")
    except ConnectionRefusedError:
        pass
else:
    to_child, from_parent = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(to_child[1])
        worker(to_child[0], from_parent[1])
    ask, answer = os.fdopen(to_child[1], "w", buffering=1), os.fdopen(from_parent[0])

waiting, done = queue.Queue(), queue.Queue()
threading.Thread(target=lambda: [done.put(waiting.get() + 1) for _ in itertools.count()], daemon=True).start()

if more[:1] == ["tcp"]:
    listening = socket.create_server(("127.0.0.1", 0))
    ends = socket.create_connection(listening.getsockname()), listening.accept()
elif "daemon" in more:
    # Its parent ends at once.
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
elif more[:1] == ["hold"]:
    held = b"x" * int(more[1])
elif more[:1] == ["ghost"]:
    ghost = tempfile.TemporaryFile()
    ghost.write(b"x" * int(more[1]))
    ghost.flush()

signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
numbers = open(os.path.join(result, "numbers"), "a")
scratch = open("scratch", "a")
# No other step has this one.
own = open(os.environ.get("OWN", "/tmp/tarn-test-count"), "a")
total = tempfile.TemporaryFile("w+")
os.mkfifo("pipe", 0o620)
with open(os.path.join(result, "begun"), "a") as begun:
    print("begun", file=begun)
waits = more[:1] == ["wait"] or len(more) == 2 and alone
for number in itertools.count():
    if number >= steps and (not waits or os.path.exists(os.environ["TARN_WORKFLOW_DIR"] + "/go")):
        steps = number
        break
    deadline, before = time.monotonic() + pause, ticks
    while time.monotonic() < deadline or ticks == before:
        time.sleep(0.002)
    waiting.put(number)
    print(done.get() - 1, file=ask)
    square = int(answer.readline())
    if alone:
        sends.sendall(b"%d\n" % number)
        before = int.from_bytes(shared[:8], "little")
        assert before == number, f"shared memory says {before} at {number}"
        shared[:8] = (number + 1).to_bytes(8, "little")
        os.write(terminal, b"%d\n" % number)
        assert int(os.read(behind, 100)) == number
    print(number, square, file=numbers, flush=True)
    print(number, file=scratch, flush=True)
    print(number, file=own, flush=True)
    total.seek(0)
    so_far = int(total.read() or 0) + square
    total.seek(0)
    print(so_far, file=total, flush=True)
    print(number, flush=True)
signal.setitimer(signal.ITIMER_REAL, 0)
assert stat.S_ISFIFO(os.stat("pipe").st_mode)
if alone:
    assert [int(unread.readline()) for _ in range(steps)] == list(range(steps))
with open(own.name) as written:
    assert [int(line) for line in written] == list(range(steps))
with open("scratch") as written, open(os.path.join(result, "total"), "w") as out:
    assert [int(line) for line in written] == list(range(steps))
    print(so_far, file=out)
