#!/usr/bin/python3
"""A file system that hangs: one folder with one file, which lists everything but whose content never comes.

hanging-store.py FOLDER [mute]: mounts it there, prints `ready`, serves until it is killed. A process that waits for it can be killed.
`mute`: it does not even list its file.
"""
import ctypes
import errno
import os
import struct
import sys

SIZE = 1 << 20
BEGUN = 1_600_000_000
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, INIT, OPENDIR, READDIR = 1, 2, 3, 14, 15, 17, 26, 27, 28
RELEASE, RELEASEDIR, FLUSH, INTERRUPT, DESTROY, BATCH_FORGET = 18, 29, 25, 36, 38, 42
SILENT = (FORGET, INTERRUPT, BATCH_FORGET, READ) + ((LOOKUP, GETATTR, STATFS) if "mute" in sys.argv[2:] else ())
NAME = b"big"


def attributes(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100644, SIZE)
    return struct.pack("<6Q10I", node, size, size // 512, BEGUN, BEGUN, BEGUN, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def entry(node, at, kind, name):
    head = struct.pack("<QQII", node, at, len(name), kind) + name
    return head + bytes(-len(head) % 8)


def answer(opcode, node, body):
    """The body of an answer, or an error."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2HI7I", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, 0, *[0] * 7)
    if opcode == GETATTR:
        return struct.pack("<QII", 1, 0, 0) + attributes(node)
    if opcode == LOOKUP:
        if node != 1 or body.rstrip(b"\0") != NAME:
            return errno.ENOENT
        return struct.pack("<4Q2I", 2, 0, 1, 1, 0, 0) + attributes(2)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, 0, 0)
    if opcode == READDIR:
        offset = struct.unpack_from("<QQ", body)[1]
        return b"" if offset else entry(1, 1, 4, b".") + entry(1, 2, 4, b"..") + entry(2, 3, 8, NAME)
    if opcode == STATFS:
        return struct.pack("<5Q10I", 0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7)
    if opcode in (RELEASE, RELEASEDIR, FLUSH, DESTROY):
        return b""
    return errno.ENOSYS


def main():
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hanging-store", os.fsencode(sys.argv[1]), b"fuse", 7, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("ready", flush=True)
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode in SILENT:
            continue
        reply = answer(opcode, node, request[40:])
        error, body = (-reply, b"") if isinstance(reply, int) else (0, reply)
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


main()
