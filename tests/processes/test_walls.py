"""Walls around real processes: what a server that tries can do, as root and as a user without privileges."""

import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.processes.places import KERNEL, TRY, WHO, Place, needs_walls
from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.support.walled import USERS, python_for, python_grants, run_walled
from transports.upstream.walls.wall_specification import Grant, Limits, Reach, Walls

pytestmark = needs_walls

FILES = """
attempts("",
    read_own=lambda: os.listdir(own) and open(own + "/file").close(),
    read_granted=lambda: os.listdir(read) and open(read + "/file").close(),
    write_own=lambda: write(own + "/new"),
    truncate_own=lambda: os.truncate(own + "/new", 3),
    write_device=lambda: write("/dev/null", os.O_WRONLY),
)
attempts("EACCES",
    read_closed=lambda: open(closed + "/file"),
    list_closed=lambda: os.listdir(closed),
    read_closed_by_symlink=lambda: os.symlink(closed + "/file", own + "/link") or open(own + "/link"),
    read_closed_by_dots=lambda: open(own + "/../closed/file"),
    read_passwords=lambda: open("/etc/passwd"),
    write_granted=lambda: write(read + "/file"),
    write_closed=lambda: write(closed + "/file"),
    make_in_granted=lambda: write(read + "/new"),
    truncate_granted=lambda: os.truncate(read + "/file", 0),
    remove_granted=lambda: os.unlink(read + "/file"),
    folder_in_closed=lambda: os.mkdir(closed + "/folder"),
    execute_own=lambda: os.chmod(own + "/file", 0o700) or subprocess.run([own + "/file"]),
)
attempts("EACCES EPERM",
    truncate_while_reading=lambda: os.open(read + "/file", os.O_RDONLY | os.O_TRUNC),
    make_device=lambda: os.mknod(own + "/device", 0o20600, os.makedev(1, 1)),
)
attempts(OUT_OF_MOUNT,
    rename_out=lambda: os.rename(own + "/new", closed + "/new"),
    rename_in=lambda: os.rename(closed + "/file", own + "/stolen"),
)
attempts("EXDEV",
    link_in=lambda: os.link(closed + "/file", own + "/stolen"),
    link_granted=lambda: os.link(read + "/file", own + "/stolen"),
)
attempts("", rename_own=lambda: os.mkdir(own + "/sub") or os.rename(own + "/new", own + "/sub/new"))
"""


@requirement("box.files")
def test_files_that_are_not_granted_are_closed(place: Place) -> None:
    out_of_mount = "EXDEV" if place.walls.namespaces else "EACCES"
    assert place.unexpected(f"OUT_OF_MOUNT = {out_of_mount!r}\n{FILES}") == []
    assert (place.closed / "file").read_text("utf-8") == (place.read / "file").read_text("utf-8") == "text"


@requirement("box.files", "box.system")
def test_what_it_starts_is_behind_the_same_walls(place: Place) -> None:
    script = f"""
inner = "import os, sys\\ntry: os.listdir({str(place.closed)!r})\\nexcept OSError as error: print(error.errno)"
subprocess.run(["/bin/sh", "-c", '"$0" -I -S -c "$1"', sys.executable, inner], start_new_session=True)
"""
    assert place.run(script).said == [errno.EACCES]


@requirement("box.siblings")
def test_processes_that_it_did_not_start_are_out_of_reach(place: Place, abstract_socket: str) -> None:
    how: dict[str, Any] = {"user": place.user, "group": place.user, "extra_groups": []} if place.user else {}
    with subprocess.Popen(
        [python_for(place.user), "-c", "input()"], stdin=subprocess.PIPE, env={"KEY": "secret"}, **how
    ) as other:
        try:
            while not Path(f"/proc/{other.pid}/cmdline").read_bytes().endswith(b"input()\0"):
                time.sleep(0.001)
            apart = place.walls.namespaces
            unexpected = place.unexpected(
                f"import ctypes, resource\nother, abstract = {other.pid}, {abstract_socket!r}\n"
                f"CLOSED, SHARED = {'EPERM EACCES' + ' ESRCH ENOENT' * apart!r}, {'' if apart else 'EPERM'!r}\n"
                """
libc = ctypes.CDLL(None, use_errno=True)
child = subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "")
attempts("",
    signal_child=lambda: subprocess.Popen(["/bin/sh", "-c", "sleep 60"]).kill(),
    affinity_of_child=lambda: os.sched_setaffinity(child.pid, {0}),
    affinity_of_itself=lambda: os.sched_setaffinity(os.getpid(), {0}),
)
attempts(CLOSED,
    signal=lambda: os.kill(other, signal.SIGTERM),
    probe=lambda: os.kill(other, 0),
    signal_reaper=lambda: os.kill(os.getppid(), signal.SIGKILL),
    signal_by_descriptor=lambda: signal.pidfd_send_signal(os.pidfd_open(other), signal.SIGTERM),
    environment=lambda: open(f"/proc/{other}/environ"),
    memory=lambda: open(f"/proc/{other}/mem"),
    descriptors=lambda: os.readlink(f"/proc/{other}/fd/0"),
    root=lambda: os.listdir(f"/proc/{other}/root" + os.sep),
    maps=lambda: open(f"/proc/{other}/maps").read(),
    abstract=lambda: socket.socket(socket.AF_UNIX).connect(abstract),
    trace=lambda: call("ptrace", 16, other, None, None),
    limit=lambda: resource.prlimit(other, resource.RLIMIT_NOFILE, (3, 3)),
    nice=lambda: os.setpriority(os.PRIO_PROCESS, other, 19),
    nice_all=lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    affinity=lambda: os.sched_setaffinity(other, {0}),
)
attempts(SHARED, shared_memory=lambda: call("shmget", 77, 10, 0o1600))
"""
            )
            assert other.poll() is None
            assert os.getpriority(os.PRIO_PROCESS, other.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        finally:
            other.communicate(b"\n")
    assert unexpected == []


@pytest.fixture
def abstract_socket() -> Iterator[str]:
    """One that everybody may connect to."""
    name = f"\0walls-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        yield name


@requirement("box.system")
def test_it_has_no_privileges_and_cannot_get_any(place: Place) -> None:
    status = place.run("print(json.dumps([l.split() for l in open('/proc/self/status')]))").said[0]
    facts = {line[0]: line[1] for line in status if len(line) > 1}
    assert (facts["NoNewPrivs:"], facts["Seccomp:"]) == ("1", "2")
    dac_override = 1 << 1
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:"):
        assert int(facts[name], 16) & ~dac_override == 0, name
    unexpected = place.unexpected("""
attempts("EPERM",
    hostname=lambda: socket.sethostname("other"),
    root=lambda: os.chroot(own),
    raw=lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    packets=lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
)
""")
    assert unexpected == []


@requirement("box.system")
def test_limits_hold_for_it_and_what_it_starts(place: Place) -> None:
    limits = Limits(memory_bytes=256 << 20, files=64)
    script = """
import resource
print(json.dumps(["limits", [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]]))
print(json.dumps(["oom", int(open("/proc/self/oom_score_adj").read())]))
def grow():
    try: bytearray(512 << 20)
    except MemoryError: raise OSError(12, "")
attempts("ENOMEM", memory=grow)
"""
    said = place.run(script, replace(place.walls, limits=limits)).said
    assert said == [["limits", [[64, 64], [0, 0]]], ["oom", 500]]


@requirement("box.system")
@pytest.mark.parametrize("what", ["processes", "threads"])
def test_a_server_with_too_many_processes_or_threads_is_ended(place: Place, what: str) -> None:
    start = {
        "processes": "os.fork() or time.sleep(60)",
        "threads": "threading.Thread(target=time.sleep, args=[60]).start()",
    }
    script = f"""
import threading, time
for _ in range(200): {start[what]}
print(json.dumps(["all", 200]), flush=True)
time.sleep(60)
"""
    outcome = place.run(script, replace(place.walls, limits=Limits(processes=100)))
    assert (outcome.failed, outcome.code) == ("", -9)
    allowed = place.run(
        "for _ in range(50): os.fork() or os._exit(0)", replace(place.walls, limits=Limits(processes=100))
    )
    assert (allowed.failed, allowed.code) == ("", 0)


@requirement("box.system", "box.default")
def test_a_signal_does_not_disturb_the_start_of_a_process(place: Place) -> None:
    """A shell has a child that ends while it starts the next one, and takes an interrupted fork(2) for a failure."""
    script = """
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.siginterrupt(signal.SIGCHLD, True)
failed = 0
for _ in range(300):
    try: os.fork() or os._exit(0)
    except InterruptedError: failed += 1
print(json.dumps(["interrupted", failed]))
"""
    outcome = place.run(script, replace(place.walls, limits=Limits(processes=1_000)))
    assert (outcome.failed, outcome.code, outcome.said) == ("", 0, [["interrupted", 0]])


@requirement("box.system")
def test_descriptors_that_a_server_leaves_on_their_way_stop_no_start(place: Place) -> None:
    """The kernel counts a user's that nobody has received yet against the limit of the process that sends one more."""
    walls = replace(place.walls, reach=Reach(), limits=Limits(files=64))
    outcome = run_walled(TRY + "print(1)", walls, user=place.user, cwd=str(place.own), in_flight=200)
    assert (outcome.failed, outcome.said) == ("", [1])


@requirement("box.system")
def test_a_server_may_have_fewer_descriptors_on_their_way_than_its_gate(place: Place) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
    outcome = place.run(script, replace(place.walls, limits=Limits(files=most)))
    assert outcome.said == [most * 3 // 4]


@requirement("box.system")
def test_walls_that_cannot_be_built_start_nothing(place: Place) -> None:
    gone = replace(place.walls, grants=(*place.walls.grants, Grant(path="/does/not/exist")))
    expected = "The sandbox 'tried' could not be built (files): No such file or directory: '/does/not/exist'"
    assert place.run("print(1)", gone).failed == expected
    optional = replace(gone, grants=(*place.walls.grants, Grant(path="/does/not/exist", optional=True)))
    assert place.run("print(1)", optional).said == [1]
    link = place.own / "elsewhere"
    link.symlink_to("/etc")
    try:
        put_there = replace(place.walls, grants=(*place.walls.grants, Grant(path=f"{link}/passwd")))
        assert "(files): Too many levels of symbolic links" in place.run("print(1)", put_there).failed
    finally:
        link.unlink()
    assert "has to let it be executed" in place.run("print(1)", Walls(profile="tried", grants=())).failed


def test_the_kernel_is_asked_in_a_process_of_its_own() -> None:
    assert not KERNEL.gate
    assert KERNEL.namespaces == "" or KERNEL.namespaces.startswith("namespaces")


def limited(limit: str, walls: Walls, script: str) -> tuple[Any, str]:
    """The outcome of a script behind walls in a user namespace in which that limit is 0, and the log."""
    given = {"argv": [python_for(None), "-I", "-S", "-c", script], "walls": walls.to_json(), "cwd": None}
    command = f'echo 0 > /proc/sys/user/{limit}; exec "$0" -m tests.support.walled'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", command, python_for(None)],
        input=json.dumps({**given, "in_flight": 0, "cgroup": "off"}), capture_output=True, text=True, timeout=240,
        check=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin"},
    )  # fmt: skip
    return json.loads(done.stdout), done.stderr


@requirement("box.siblings")
@pytest.mark.skipif(bool(KERNEL.namespaces) or shutil.which("unshare") is None, reason="no namespaces, or no unshare")
def test_it_is_started_in_a_container_on_a_kernel_whose_threads_have_no_pidfds() -> None:
    walls = Walls(profile="tried", grants=python_grants(), reach=Reach(public=True), namespaces=True, required=True)
    python = python_for(None)
    given = {"argv": [python, "-I", "-S", "-c", "print(1)"], "walls": walls.to_json(), "cwd": None}
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    container += ["sh", "-c", '/bin/true; exec "$@"', "sh"]  # the process 2 of the container has ended
    done = subprocess.run(
        [*container, python, str(ROOT / "tests/support/without.py"), "threads", python, "-m", "tests.support.walled"],
        input=json.dumps({**given, "in_flight": 0, "cgroup": "off"}), capture_output=True, text=True, timeout=110,
        check=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert json.loads(done.stdout)["said"] == [1], done.stdout


@requirement("box.required", "box.siblings")
@pytest.mark.skipif(bool(KERNEL.namespaces) or shutil.which("unshare") is None, reason="no namespaces, or no unshare")
@pytest.mark.parametrize("required", [False, True])
def test_a_server_that_gets_no_namespaces_for_a_moment_is_not_started_unseen(required: bool) -> None:
    """A user namespace may contain no further one, as where a limit of the machine is reached."""
    walls = Walls(profile="tried", grants=python_grants(), namespaces=True, required=required)
    outcome, log = limited("max_user_namespaces", walls, "print(1)")
    if required:
        assert "is required, but cannot be enforced here. The server sees the names" in outcome["failed"]
    else:
        assert (outcome["said"], outcome["failed"]) == ([1], "")
        assert "has no /tmp of its own: namespaces are refused (No space left on device)" in log


APART = """
import ctypes
print(json.dumps(["pids", [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]]))
print(json.dumps(["own", [os.getpid(), os.getppid(), os.listdir("/tmp"), os.listdir("/dev/shm")]]))
for folder in ("/tmp", "/dev/shm"):
    with open(folder + "/mine", "w") as file: file.write("x" * 10_000)
segment = ctypes.CDLL(None).shmget(0x5A17, 4096, 0o1600)
print(json.dumps(["segment", segment >= 0]))
print(json.dumps(["mine", open("/tmp/mine").read() == "x" * 10_000]), flush=True)
with open("/dev/shm/full", "wb") as file:
    try:
        while True: file.write(bytes(1 << 24))
    except OSError as error: print(json.dumps(["full", [error.errno, file.tell() >> 20]]))
"""


def granted_in_tmp(walls: Walls) -> list[str]:
    """What a server with a `/tmp` of its own finds in it: the interpreter too, if these tests are in a clone there."""
    return sorted({Path(path).parts[2] for path, *_ in walls.grants if path.startswith("/tmp/")})


@pytest.mark.parametrize("place", [name for name, (_, apart) in WHO.items() if apart], indirect=True)
@requirement("box.siblings")
def test_with_namespaces_it_sees_and_shares_nothing_of_others(place: Place) -> None:
    for _ in range(2):  # and nothing is left for the next one
        said = dict(place.run(APART).said)
        assert said["pids"] == [2], "itself: the reaper, which sees the network of the machine, is hidden"
        assert said["own"] == [2, 1, granted_in_tmp(place.walls), []]
        assert (said["segment"], said["mine"]) == (True, True)
        error, megabytes = said["full"]
        assert error == errno.ENOSPC
        assert megabytes <= 256
    assert not Path("/dev/shm/mine").exists()


OWN_FOLDERS = """
import ctypes
def is_shut(path):
    try: write(path)
    except OSError as error: return errno.errorcode[error.errno]
print(json.dumps(["others", [os.path.exists(path) for path in OTHERS]]))
for folder in ("/tmp", "/dev/shm"):
    os.mkdir(folder + "/made", 0o700)
    os.chmod(folder + "/made", 0o755)
    write(folder + "/made/mine")
    os.rename(folder + "/made/mine", folder + "/moved")
print(json.dumps(["read", [open(path).read() for path in READ]]))
print(json.dumps(["shut", [is_shut(os.path.dirname(READ[0]) + "/new"), is_shut(READ[0])]]))
write(WRITE)
print(json.dumps(["talks", talks(SOCKET)]))
"""

TALKS = """
def talks(path):
    try:
        with socket.socket(socket.AF_UNIX) as one: one.connect(path)
    except OSError as error: return errno.errorcode[error.errno]
"""


@pytest.mark.skipif(bool(KERNEL.mounts), reason=f"here, {KERNEL.mounts}")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("apart", [False, True])
@requirement("box.files", "box.siblings")
def test_it_has_tmp_and_shared_memory_of_its_own_and_in_them_what_is_granted(user: int | None, apart: bool) -> None:
    if apart and KERNEL.namespaces:
        pytest.skip(f"here, {KERNEL.namespaces}")
    with tempfile.TemporaryDirectory(dir="/tmp") as name, tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:
        folder = Path(name)
        for each in ("read/only", "write", "own/tmp", "closed"):
            (folder / each).mkdir(parents=True)
            (folder / each / "file").write_text(each, encoding="utf-8")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "closed/socket"))
            listener.listen()
            for path in (folder, *folder.rglob("*")):
                os.chown(path, os.geteuid() if user is None else user, -1)
            grants = (
                *python_grants(user),
                Grant(path=str(folder / "read"), mode="rx"),
                Grant(path=str(folder / "write"), mode="rw"),
                Grant(path=str(folder / "own"), mode="rwx"),
                Grant(path=str(folder / "closed"), mode="l"),
            )
            walls = Walls(
                profile="tried", grants=grants, common=len(grants) - 2, reach=Reach(sockets=(f"{name}/closed/socket",)),
                own_folders=True, namespaces=apart, temporary=str(folder / "own/tmp"),
            )  # fmt: skip
            facts = f"OTHERS, READ, WRITE, SOCKET = {[shared.name, f'{name}/closed/file', f'{name}/own/tmp/file']!r}, "
            facts += f"{[f'{name}/read/only/file']!r}, {f'{name}/write/new'!r}, {f'{name}/closed/socket'!r}\n"
            outcome = run_walled(TRY + TALKS + facts + OWN_FOLDERS, walls, user=user, cwd="/")
            assert (outcome.failed, outcome.errors) == ("", [])
            said = dict(outcome.said)
            assert said["others"] == [False, False, True]
            assert said["read"] == ["read/only"]
            assert said["shut"] == ["EROFS", "EROFS"], "what is granted to be read"
            assert said["talks"] is None
        assert (folder / "write/new").exists()
        assert (folder / "own/tmp/moved").exists()
        assert not Path("/tmp/made").exists()
        assert not Path("/dev/shm/made").exists()


@pytest.mark.skipif(bool(KERNEL.mounts), reason=f"here, {KERNEL.mounts}")
@pytest.mark.parametrize("at", ["folder", "file", "tmp"])
@requirement("box.files")
def test_a_symlink_that_a_server_has_left_in_its_tmp_leads_the_next_start_nowhere(at: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, tempfile.TemporaryDirectory(dir="/var/tmp") as elsewhere:
        own, granted, secret = Path(name, "own/tmp"), Path(name, "granted/folder/file"), Path(elsewhere, "secret")
        granted.parent.mkdir(parents=True)
        granted.touch()
        secret.touch()
        link = {
            "folder": own / Path(name).name,
            "file": own / granted.relative_to("/tmp"),
            "tmp": own,
        }[at]
        link.parent.mkdir(parents=True)
        link.symlink_to(secret if at == "file" else elsewhere)
        grants = (*python_grants(), Grant(path=str(granted), mode="rw"), Grant(path=str(own.parent), mode="rw"))
        walls = Walls(profile="tried", grants=grants, own_folders=True, temporary=str(own))
        outcome = run_walled(f"import os; print(len(os.listdir({elsewhere!r})))", walls, cwd="/")
        assert str(own if at == "tmp" else granted) in outcome.failed, outcome
        assert os.listdir(elsewhere) == ["secret"]


@pytest.mark.skipif(bool(KERNEL.mounts), reason=f"here, {KERNEL.mounts}")
@requirement("box.files")
def test_tmp_stays_that_of_the_machine_where_it_is_granted() -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        for grant in ("/tmp", "/"):
            walls = Walls(profile="tried", grants=(*python_grants(), Grant(path=grant, mode="r")), own_folders=True)
            script = f"print(json.dumps([os.path.exists({file.name!r}), os.listdir('/dev/shm') == []]))"
            own_shared = grant != "/"
            assert run_walled(TRY + script, walls).said[0] in ([True, own_shared], [True, True]), grant


@requirement("box.required", "box.files")
@pytest.mark.skipif(bool(KERNEL.mounts) or shutil.which("unshare") is None, reason="no mounts, or no unshare")
def test_a_server_that_gets_no_mounts_is_started_and_that_is_told() -> None:
    walls = Walls(profile="tried", grants=python_grants(), own_folders=True, required=True)
    outcome, log = limited("max_mnt_namespaces", walls, "import os; print(int(os.path.exists('/tmp')))")
    assert (outcome["said"], outcome["failed"]) == ([1], "")
    assert "has no /tmp of its own: mounts cannot be used (No space left on device)" in log


LISTENING = """
def bind(address, port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        one.listen()
def reach(port):
    with socket.create_connection(("127.0.0.1", port), 5): pass
attempts("", own=lambda: bind("127.0.0.1", 7655))
attempts("EACCES", other=lambda: bind("0.0.0.0", 7656))
attempts(REACHED, reach=lambda: reach(PORT))
"""


@pytest.mark.parametrize("missing", ["", "gate"])
@requirement("box.network")
def test_ports_that_are_not_granted_are_closed_with_and_without_a_gate(missing: str) -> None:
    """As in a container with Docker's own filter, where there is no gate."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        for user in USERS:
            for reached, hosts in (("EACCES", ()), ("", (f"127.0.0.1:{port}",))):
                reach = Reach(listen=(7655,), hosts=hosts)
                walls = Walls(profile="strict", grants=python_grants(user), reach=reach)
                script = f"{TRY}PORT, REACHED = {port}, {reached!r}\n{LISTENING}"
                outcome = run_walled(script, walls, user=user, missing=missing)
                assert (outcome.failed, outcome.code, outcome.said) == ("", 0, []), outcome
