//! Attacks on the socket of `tarn exec` and `tarn enter`, and on the open files that it takes: `$PMI_FD` and others.

use crate::Test;
use crate::bench::{Bench, Machine, committed, namespaces_allowed};
use crate::multi::{two, with_helper};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    (
        "opened::a_task_of_srun_has_its_open_files_under_their_numbers",
        files_keep_their_numbers,
    ),
    (
        "opened::attack_who_keeps_to_nothing_at_the_door_of_exec_stops_nobody",
        who_keeps_to_nothing,
    ),
    (
        "opened::attack_numbers_of_descriptors_that_are_none_are_refused",
        numbers,
    ),
    (
        "opened::attack_what_pmi_fd_names_must_be_open_and_no_folder",
        named_by_pmi,
    ),
    (
        "opened::attack_descriptors_of_refused_requests_are_closed",
        refused_are_closed,
    ),
    (
        "opened::attack_clients_that_send_nothing_or_half_keep_nobody_waiting",
        silent,
    ),
    (
        "opened::attack_a_node_without_free_descriptors_loses_no_step",
        exhausted,
    ),
    (
        "opened::attack_many_requests_at_once_are_all_served",
        many_at_once,
    ),
    (
        "opened::attack_large_requests_take_turns_and_are_all_served",
        large_requests,
    ),
    ("opened::attack_another_user_has_nothing_run", another_user),
    (
        "opened::attack_what_is_sent_over_pmi_reaches_the_command_as_it_is",
        garbage_over_pmi,
    ),
    (
        "opened::attack_an_answer_that_nobody_reads_holds_up_nobody",
        unread_answers,
    ),
];

/// The begin of the attackers' programs. `answer` returns the reply that `tarn exec` would read.
pub(crate) const CLIENT: &str = r#"
import array, itertools, json, os, resource, signal, socket, subprocess, sys, time
DOOR = os.environ['TARN_EXEC_DIR'] + '/n1'
HELPER = os.environ['HELPER']
def door():
    s = socket.socket(socket.AF_UNIX)
    s.connect(DOOR)
    s.settimeout(120)
    return s
def request(argv=['true'], fds=[], **more):
    words = lambda list: [{'Unix': [*w.encode()]} for w in list]
    env = [[words([k])[0], words([v])[0]] for k, v in os.environ.items()]
    return json.dumps({'argv': words(argv), 'env': env, 'cwd': '/', 'fds': fds, **more}).encode() + b'\n'
def rights(s, fds):
    s.sendmsg([b'f'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))])
def answer(s):
    said = b''
    try:
        while not said.endswith(b'\n') and (piece := s.recv(65536)):
            said += piece
    except ConnectionResetError:
        pass
    return said.decode()
def ask(fds, text):
    with door() as s:
        try:
            rights(s, fds)
            s.sendall(text)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer(s)
def enter(*argv, pass_fds=(), **env):
    env = TASK | env
    return subprocess.run([HELPER, 'enter', *argv], pass_fds=pass_fds, env=env, capture_output=True, text=True)
def works():
    began = time.monotonic()
    done = subprocess.run([HELPER, 'exec', 'n1', '--', 'echo', 'there'], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 'there\n'), done
    return time.monotonic() - began
# Process 1 is the helper of the node.
def open_there():
    done = subprocess.run([HELPER, 'exec', 'n1', '--', 'ls', '/proc/1/fd'], capture_output=True, text=True)
    assert done.returncode == 0, done
    return len(done.stdout.split())
def until(holds):
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
# As srun starts a task on the node. On one machine the nodes' sockets are in one folder.
TASK = os.environ | {'SLURMD_NODENAME': 'n1', 'TARN_EXEC_DIRS': 'n1 ' + os.environ['TARN_EXEC_DIR']}
null = os.open('/dev/null', os.O_RDWR)
three = [null] * 3
"#;

/// Clients that send nothing, or half of a request.
pub(crate) const SILENT: &str = r#"
usual = max(works() for _ in range(3))
quiet = [door() for _ in range(60)]
half = []
for _ in range(60):
    s = door()
    rights(s, three)
    s.sendall(request()[:100])
    half.append(s)
# If each was waited for, this would take 10 minutes.
took = sorted(works() for _ in range(5))
assert took[2] < 10 * usual + 30, (took, usual)
for s in quiet + half:
    said = answer(s)
    assert 'did not arrive within 5 s' in said or 'try again' in said, said
# Many more than have a place, each with as many descriptors as a message has.
crowd = []
def another():
    s = door()
    rights(s, [null] * 64)
    crowd.append(s)
for _ in range(100):
    another()
works()
for s in crowd:
    said = answer(s)
    assert 'did not arrive within 5 s' in said or 'try again' in said, said
# Nothing of this was waited for by the step itself.
os._exit(0)
"#;

/// The command that runs an attacker's program.
pub(crate) const RUN: &str = "python3 $TARN_WORKFLOW_DIR/attack.py";

/// A step of two nodes whose program is this one.
fn bench(program: &str) -> Option<Bench> {
    let mut bench = Bench::new(vec![], vec![two(RUN, vec![])]);
    bench.nodes = 2;
    with_helper(&mut bench);
    if !namespaces_allowed(&bench.world()) {
        return None;
    }
    bench.write("attack.py", &format!("{CLIENT}\n{program}"));
    Some(bench)
}

fn attacked(program: &str) {
    let Some(bench) = bench(program) else { return };
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![]);
    ended(&bench, &mut world);
}

fn ended(bench: &Bench, world: &mut Machine) {
    let ended = world.ended();
    let log = std::fs::read_to_string(bench.state().step_log("r1", "work-0", 1));
    println!("{}", log.unwrap_or_default());
    committed(ended);
}

fn files_keep_their_numbers() {
    attacked(
        r#"
read, write = os.pipe()
os.mkfifo('fifo')
fifo = os.open('fifo', os.O_RDWR)
os.dup2(write, 57)
os.dup2(fifo, 900)
names = 'echo piped >&57; echo through > /dev/fd/900; ls /proc/self/fd'
done = enter('bash', '-c', names, pass_fds=(57, 900), PMI_FD='57')
assert done.returncode == 0, done
assert os.read(read, 100) == b'piped\n' and os.read(fifo, 100) == b'through\n'
# Nothing else than what every command has here.
usual = subprocess.run([HELPER, 'exec', 'n1', '--', 'ls', '/proc/self/fd'], capture_output=True, text=True)
assert {*done.stdout.split()} == {*usual.stdout.split(), '57', '900'}, (done, usual)
"#,
    );
}

fn numbers() {
    attacked(
        r#"
for number in [-1, -2**31, 0, 1, 2, 2**31 - 1, 2**20 * 1000]:
    said = ask(three + [null], request(fds=[number]))
    assert 'Refused' in said and str(number) in said, (number, said)
for number in [2**31, -2**40, 1.5, 'x', None]:
    assert 'Refused' in ask(three + [null], request(fds=[number])), number
said = ask(three + [null] * 3, request(fds=[8, 9, 8]))
assert 'Refused' in said and 'descriptor 8 is given twice' in said, said
# Those of the helper itself are numbers as any other.
for number in range(3, 30):
    said = ask(three + [null], request(['sh', '-c', f'test -e /proc/self/fd/{number}'], fds=[number]))
    assert 'Exited' in said and '0' in said, (number, said)
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
lower = subprocess.run(['sh', '-c', f'ulimit -n'], capture_output=True, text=True).stdout.strip()
if lower.isdigit() and int(lower) < 2**20:
    said = ask(three + [null], request(fds=[int(lower)]))
    assert 'lower number' in said, said
# Fewer or more than are named, none, and more than a message has.
for many, named in [(0, 1), (1, 0), (1, 2), (60, 61), (61, 60)]:
    said = ask(three + [null] * many, request(fds=[*range(10, 10 + named)]))
    assert 'Refused' in said, (many, named, said)
assert 'Refused' in ask([null] * 2, request())
assert 'Refused' in ask([null] * 200, request(fds=[*range(10, 207)]))
with door() as s:
    s.sendall(b'f' + request())
    assert 'Refused' in answer(s)
works()
"#,
    );
}

fn named_by_pmi() {
    attacked(
        r#"
read, write = os.pipe()
os.dup2(write, 57)
for pmi in ['-1', '', 'x', '99999999999999999999', '1', '57 ']:
    done = enter('echo', 'ran', pass_fds=(57,), PMI_FD=pmi)
    assert done.returncode == 255 and not done.stdout, done
    assert 'PMI_FD' in done.stderr and 'srun' in done.stderr, done
# One that was closed on the way stays unusable: what needs PMI fails, all else runs.
pmi = 'import os; assert os.read(58, 1) == b""; print(os.environ["PMI_FD"], os.environ["PMI_RANK"], flush=True); os.write(58, b"cmd=init")'
done = enter('python3', '-c', pmi, pass_fds=(57,), PMI_FD='58', PMI_RANK='1')
assert done.returncode == 1 and done.stdout == '58 1\n' and 'Bad file descriptor' in done.stderr, done
assert 'PMI_FD is `58`, but descriptor 58 is not open' in done.stderr, done
done = enter('echo', 'ran', PMI_FD='58')
assert (done.returncode, done.stdout) == (0, 'ran\n') and 'MPI_Init' in done.stderr, done
folder = os.open('/', os.O_RDONLY)
path = os.open('/etc/passwd', os.O_PATH)
for fd in (folder, path):
    done = enter('echo', 'ran', pass_fds=(fd,), PMI_FD=str(fd))
    assert done.returncode == 127 and not done.stdout, done
    assert f'{fd}<&-' in done.stderr, done
# Standard streams lead out as well.
for at, fd in itertools.product(range(3), (folder, path)):
    files = three[:]
    files[at] = fd
    said = ask(files, request(['touch', '/tmp/ran']))
    name = ['standard input', 'standard output', 'standard error'][at]
    assert 'Refused' in said and f'{name} is an open folder' in said and '/dev/null' in said, said
    streams = dict(stdin=null, stdout=subprocess.PIPE, stderr=subprocess.PIPE) | {['stdin', 'stdout', 'stderr'][at]: fd}
    for how in (['enter'], ['exec', 'n1', '--']):
        done = subprocess.run([HELPER, *how, 'touch', '/tmp/ran'], env=TASK, **streams)
        assert done.returncode == 127, done
assert not os.path.exists('/tmp/ran')
many = [os.dup(write) for _ in range(300)]
done = enter('echo', 'ran', pass_fds=many, PMI_FD=str(many[0]))
assert done.returncode == 255 and not done.stdout, done
assert '300 files' in done.stderr and 'close' in done.stderr, done
# As many as can be.
done = enter('echo', 'ran', pass_fds=many[:61], PMI_FD=str(many[0]))
assert (done.returncode, done.stdout) == (0, 'ran\n'), done
# A task that may open nothing more.
few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
done = subprocess.run([HELPER, 'enter', 'echo', 'ran'], env=TASK, preexec_fn=few, capture_output=True, text=True)
assert done.returncode != 0 and not done.stdout and done.stderr, done
works()
"#,
    );
}

fn refused_are_closed() {
    attacked(
        r#"
works()
before = open_there()
read, write = os.pipe()
for n in range(1000):
    fds = [write] * (3 + n % 50)
    kind = n % 5
    if kind == 0:
        assert 'Refused' in ask(fds, request(fds=[1] * (len(fds) - 3)) if n % 50 else request(['/no/such']))
    elif kind == 1:
        assert 'Refused' in ask(fds, b'garbage\n')
    elif kind == 2:
        assert 'Refused' in ask(fds + [write], request())
    elif kind == 3:
        with door() as s:
            rights(s, fds)
            s.sendall(request()[:40])
    else:
        with door() as s:
            rights(s, fds)
            rights(s, fds)
            s.shutdown(socket.SHUT_WR)
            answer(s)
until(lambda: open_there() <= before)
os.close(write)
# All copies of its other end are closed.
assert os.read(read, 1) == b''
works()
"#,
    );
}

fn silent() {
    attacked(SILENT);
}

fn exhausted() {
    attacked(
        r#"
before = open_there()
limits = """
import resource, sys
usual = resource.prlimit(1, resource.RLIMIT_NOFILE)
resource.prlimit(1, resource.RLIMIT_NOFILE, (int(sys.argv[1]), usual[1]))
print('low', flush=True)
sys.stdin.readline()
resource.prlimit(1, resource.RLIMIT_NOFILE, usual)
"""
# None at all for the helper, then too few for a request.
for least in (3, before + 6):
    argv = [HELPER, 'exec', 'n1', '--', 'python3', '-c', limits, str(least)]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b'low\n'
    others = [subprocess.Popen([HELPER, 'exec', 'n1', '--', 'true'], stderr=subprocess.PIPE) for _ in range(20)]
    quiet = [door() for _ in range(20)]
    # Longer than the helper pauses.
    time.sleep(1)
    holder.stdin.close()
    # What runs goes on, and its end is told.
    assert holder.wait(120) == 0
    for other in others:
        said = other.communicate(timeout=120)[1].decode()
        assert other.returncode == 0 or 'open files' in said, said
    for s in quiet:
        s.close()
    until(lambda: subprocess.run([HELPER, 'exec', 'n1', '--', 'true'], stderr=subprocess.DEVNULL).returncode == 0)
    until(lambda: open_there() <= before)
works()
"#,
    );
}

/// Whole requests with more descriptors than the helper may have wait while it does not run.
fn many_at_once() {
    let Some(bench) = bench(
        r#"
shown = os.environ['TARN_WORKFLOW_DIR'] + '/'
works()
usual = open_there()
many = [os.dup(null) for _ in range(20)]
open(shown + 'waits', 'w').close()
until(lambda: os.path.exists(shown + 'stopped'))
start = lambda: subprocess.Popen([HELPER, 'enter', 'true'], pass_fds=many, env=TASK, stderr=subprocess.PIPE)
tasks = [start() for _ in range(100)]
def has_connected(task):
    try:
        files = f'/proc/{task.pid}/fd/'
        return any('socket:' in os.readlink(files + n) for n in os.listdir(files))
    except FileNotFoundError:
        return False
until(lambda: all(has_connected(task) for task in tasks))
time.sleep(2)
open(shown + 'asked', 'w').close()
for task in tasks:
    said = task.communicate(timeout=120)[1].decode()
    assert task.returncode == 0, said
until(lambda: open_there() <= usual)
"#,
    ) else {
        return;
    };
    let usual = getrlimit(Resource::Nofile);
    let low = Rlimit {
        current: Some(1024),
        ..usual
    };
    setrlimit(Resource::Nofile, low).unwrap();
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![]);
    let until = Instant::now() + Duration::from_secs(120);
    let wait = |name: &str| {
        while !bench.path(name).exists() {
            assert!(Instant::now() < until, "no {name}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("waits");
    setrlimit(Resource::Nofile, usual).unwrap();
    let folder = File::open(bench.path("tier/ws/n0/work/s0.0.1/exec")).unwrap();
    // A path that is short enough for a socket.
    let socket = format!("/proc/self/fd/{}/n1", folder.as_raw_fd());
    let helper = tarn_sys::fdpass::peer(UnixStream::connect(socket).unwrap());
    let helper = Pid::from_raw(helper.unwrap().pid).unwrap();
    kill_process(helper, Signal::STOP).unwrap();
    bench.write("stopped", "");
    wait("asked");
    kill_process(helper, Signal::CONT).unwrap();
    ended(&bench, &mut world);
}

/// Requests that are so large that not all can be in memory, and a few that never end.
fn large_requests() {
    attacked(
        r#"
large = {f'LARGE{n}': 'x' * 100_000 for n in range(10)}
stalled = []
for _ in range(10):
    s = door()
    rights(s, three)
    s.sendall(request()[:-1] + b' ' * (1 << 20))
    stalled.append(s)
start = lambda: subprocess.Popen([HELPER, 'exec', 'n1', '--', 'sh', '-c', 'echo ${#LARGE9}'], env=TASK | large, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
tasks = [start() for _ in range(30)]
for task in tasks:
    said = task.communicate(timeout=240)
    assert (task.returncode, said[0]) == (0, b'100000\n'), said
# One of which its whole MiB has come has a second more for it.
late = [f'did not arrive within {n} s' for n in (5, 6)]
for s in stalled:
    said = answer(s)
    assert any(why in said for why in [*late, 'try again']), said
works()
"#,
    );
}

fn another_user() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let Some(bench) = bench(
        r#"
# By a user's mistake everybody may reach the socket: it is opened to all behind the step's view, where the folder is read-only.
shown = os.environ['TARN_WORKFLOW_DIR'] + '/'
open(shown + 'waits', 'w').close()
until(lambda: os.path.exists(shown + 'opened'))
folder = os.open(os.environ['TARN_EXEC_DIR'], os.O_RDONLY)
before = open_there()
if os.fork() == 0:
    os.fchdir(folder)
    os.setgroups([]); os.setgid(65533); os.setuid(65533)
    for _ in range(50):
        s = socket.socket(socket.AF_UNIX)
        s.connect('n1')
        try:
            rights(s, three)
            s.sendall(request(['touch', '/tmp/owned']))
        except (BrokenPipeError, ConnectionResetError):
            pass
        said = answer(s)
        assert 'Refused' in said and 'for nobody else' in said, said
        s.close()
    os._exit(0)
assert os.wait()[1] == 0
until(lambda: open_there() <= before)
done = subprocess.run([HELPER, 'exec', 'n1', '--', 'test', '-e', '/tmp/owned'])
assert done.returncode == 1
# One who listens in the node's place gets nothing from who calls.
os.mkdir('/tmp/theirs'); os.chown('/tmp/theirs', 65533, 65533)
ready, is_ready = os.pipe()
child = os.fork()
if child == 0:
    os.setgroups([]); os.setgid(65533); os.setuid(65533)
    s = socket.socket(socket.AF_UNIX)
    s.bind('/tmp/theirs/n1')
    s.listen()
    os.write(is_ready, b'x')
    c, _ = s.accept()
    got, fds, *_ = socket.recv_fds(c, 4096, 64)
    os._exit(1 if got or fds else 0)
os.read(ready, 1)
done = enter('true', TARN_EXEC_DIRS='n1 /tmp/theirs')
assert done.returncode == 255 and 'another user' in done.stderr, done
assert os.waitpid(child, 0)[1] == 0
works()
"#,
    ) else {
        return;
    };
    let mut world = bench.world();
    world.begin(0, 1, &[0, 1], vec![]);
    let until = Instant::now() + Duration::from_secs(120);
    while !bench.path("waits").exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    let folder = bench.path("tier/ws/n0/work/s0.0.1/exec");
    for path in [folder.join("n1"), folder] {
        std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    bench.write("opened", "");
    ended(&bench, &mut world);
}

fn garbage_over_pmi() {
    attacked(
        r#"
ours, theirs = socket.socketpair()
os.dup2(theirs.fileno(), 57)
theirs.close()
garbage = bytes(range(256)) * 4096 + b'\n{"Ended":{"Exited":0}}\n'
echo = 'import os, sys, socket; s = socket.socket(fileno=os.dup(int(os.environ["PMI_FD"])))\nwhile b := s.recv(65536): s.sendall(b)\nsys.exit(7)'
env = TASK | {'PMI_FD': '57'}
task = subprocess.Popen([HELPER, 'enter', 'python3', '-c', echo], pass_fds=(57,), env=env)
os.close(57)
back = b''
ours.settimeout(120)
for at in range(0, len(garbage), 4096):
    piece = garbage[at:at + 4096]
    ours.sendall(piece)
    while len(back) < at + len(piece):
        back += ours.recv(65536)
assert back == garbage
ours.shutdown(socket.SHUT_WR)
assert task.wait() == 7
# The connection is closed with the command: nobody else has it.
assert ours.recv(1) == b''
works()
"#,
    );
}

fn unread_answers() {
    attacked(
        r#"
# The name of the program is in the reason; 4 MiB of it fit into no buffer.
s = door()
rights(s, three)
s.sendall(b'{"argv":[{"Unix":[' + b','.join([b'65'] * (4 << 20)) + b']}],"env":[],"cwd":"/"}\n')
works()
said = answer(s)
assert 'Refused' in said and len(said) < 10000, len(said)
works()
"#,
    );
}

/// A program of the step that sends garbage, sends nothing, goes, never ends its line, or sends one byte after the other: each
/// loses its connection, and commands are started as before.
fn who_keeps_to_nothing() {
    attacked(
        r#"
def ended(s):
    try:
        while s.recv(4096):
            pass
    except OSError:
        pass
def asks(*pieces, fds=(0, 1, 2), pause=0):
    s = door()
    try:
        socket.send_fds(s, [b'x'], fds)
        for piece in pieces:
            s.sendall(piece)
            time.sleep(pause)
    except OSError:
        pass
    else:
        assert len(pieces) < 10_000, 'one byte after the other was heard to its end'
    ended(s)
door().close()
silent = door()
asks(b'garbage\n')
asks(b'{"argv":[]}\n')
asks(b'\0\xff' * 4096 + b'\n', fds=(0,))
asks(b'x' * (17 << 20))
asks(*[b'x'] * 10_000, pause=0.5)
ended(silent)
works()
"#,
    );
}
