#!/usr/bin/python3
"""An object store to test against: OpenStack Swift (Debian's packages), spoken to by S3, on loopback, in a folder of its own.

    scripts/swift.py FOLDER [ADDRESS [PAGE]]

Prints `ready http://ADDRESS:PORT` once it answers, at 127.0.0.1 unless another address of this host is given. It lists PAGE objects
at once, or as many as Swift does by itself, which is 1,000. It ends, with all its processes, when its standard input does. Key
`test:tester`, secret `testing`. FOLDER must be on a file system with user.* attributes; it is removed at the end.
"""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

# The smallest part of a multipart upload: the field's 5 MiB, as tests are to meet what users meet.
PROXY = """
[DEFAULT]
bind_ip = {address}
bind_port = {proxy}
workers = 0
swift_dir = {folder}
user = {user}
log_level = WARNING
log_address = {folder}/nolog
[pipeline:main]
pipeline = catch_errors proxy-logging cache s3api tempauth copy slo dlo proxy-logging proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
check_bucket_owner = false
{page}
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
min_segment_size = 1
[filter:dlo]
use = egg:swift#dlo
"""

KEEPER = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
user = {user}
log_level = WARNING
log_address = {folder}/nolog
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

KINDS = ("object", "container", "account")


def ports(addresses):
    """Free ones: all held at once, so that they differ."""
    held = [socket.socket() for _ in addresses]
    for one, address in zip(held, addresses):
        one.bind((address, 0))
    numbers = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return numbers


def prepare(folder, address, page):
    import pwd

    user = pwd.getpwuid(os.geteuid()).pw_name
    proxy, *keepers = ports([address, *("127.0.0.1" for _ in KINDS)])
    (folder / "devices" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = t\nswift_hash_path_prefix = t\n")
    (folder / "proxy-server.conf").write_text(PROXY.format(page=page, proxy=proxy, address=address, folder=folder, user=user))
    for kind, port in zip(KINDS, keepers):
        (folder / f"{kind}-server.conf").write_text(KEEPER.format(kind=kind, port=port, folder=folder, user=user))
        ring = str(folder / f"{kind}.builder")
        for words in (["create", "4", "1", "1"], ["add", f"r1z1-127.0.0.1:{port}/d1", "1"], ["rebalance"]):
            # 1 is a warning of what one device cannot do.
            done = subprocess.run(["swift-ring-builder", ring, *words], capture_output=True, text=True)
            if done.returncode > 1:
                sys.exit(f"swift-ring-builder {' '.join(words)}: {done.stdout}{done.stderr}")
    return proxy, keepers


def answers(address, port):
    try:
        connection = http.client.HTTPConnection(address, port, timeout=5)
        connection.request("GET", "/")
        connection.getresponse().read()
        return True
    except OSError:
        return False


def main():
    folder = Path(sys.argv[1]).resolve()
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    page = f"max_bucket_listing = {int(sys.argv[3])}" if len(sys.argv) > 3 else ""
    port, keepers = prepare(folder, address, page)
    log = open(folder / "log", "wb")
    started = [
        subprocess.Popen(
            ["/usr/bin/python3", f"/usr/bin/swift-{kind}-server", str(folder / f"{kind}-server.conf")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "SWIFT_DIR": str(folder)},
        )
        for kind in (*KINDS, "proxy")
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        until = time.monotonic() + 180
        # The proxy answers before those that it asks do: all must.
        while not (answers(address, port) and all(answers("127.0.0.1", keeper) for keeper in keepers)):
            if time.monotonic() > until or any(one.poll() is not None for one in started):
                sys.exit(f"Swift did not start; {folder}/log says why:\n" + (folder / "log").read_text())
            time.sleep(0.1)
        print(f"ready http://{address}:{port}", flush=True)
        sys.stdin.read()
    finally:
        for one in started:
            one.kill()
            one.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
