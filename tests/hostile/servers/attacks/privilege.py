"""More rights than it was given."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
from functools import partial

from .attempt import Facts, any_of, which_of
from .kernel import libc, syscall

_NEW_USER, _NEW_NET, _NEW_MOUNT, _NEW_PID = 0x1000_0000, 0x4000_0000, 0x0002_0000, 0x2000_0000


def setuid_program(facts: Facts) -> str:
    """Run one: whose user is it then?"""
    ran = subprocess.run([facts["path"], "-u"], capture_output=True, text=True, check=False)
    return f"user {ran.stdout.strip()}{ran.stderr.strip()}"


def new_namespaces(facts: Facts) -> str:
    """unshare, clone and clone3 with namespaces: in a user namespace everybody is root."""
    done = []
    for name, act in (
        ("unshare", lambda: syscall("unshare", _NEW_USER)),
        ("clone", lambda: _cloned(_NEW_USER)),
        ("clone net", lambda: _cloned(_NEW_NET)),
        ("clone3", _cloned3),
    ):
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            with contextlib.suppress(OSError):
                act()
                os.write(writes, b"1")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writes)
        if os.read(reads, 1):
            done.append(name)
    return any_of(done, "none of four ways")


def _cloned(flags: int) -> None:
    if syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


def _cloned3() -> None:
    arguments = ctypes.create_string_buffer(struct.pack("8Q", _NEW_USER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)
    if syscall("clone3", arguments, 64) == 0:
        os._exit(0)


def joined_namespace(facts: Facts) -> str:
    """setns: the namespaces of the gateway, of siblings and of the first process."""

    def join(pid: int, kind: str) -> None:
        syscall("setns", os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), 0)

    pids, kinds = (facts["gateway"], *facts["siblings"], os.getppid(), 1), ("user", "net", "mnt", "ipc", "uts")
    return which_of(((f"{kind} of {pid}", partial(join, pid, kind)) for pid in pids for kind in kinds), "none")


def mounted(facts: Facts) -> str:
    """A file system of its own over the folder of another, with and without a user namespace."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(OSError):
            syscall("unshare", _NEW_USER | _NEW_MOUNT)
        folder = os.environ.get("TMPDIR", "/tmp").encode()
        acts = {
            "tmpfs": lambda: syscall("mount", b"tmpfs", folder, b"tmpfs", 0, 0),
            "proc": lambda: syscall("mount", b"proc", folder, b"proc", 0, 0),
            "fsopen": lambda: syscall("fsopen", b"tmpfs", 0),
            "open_tree": lambda: syscall("open_tree", -100, b"/", 1),
        }
        with contextlib.suppress(OSError):
            os.write(writes, which_of(acts.items(), "no way of four").encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writes)
    got = os.read(reads, 200).decode()
    if not got:
        raise PermissionError("no way of four")
    return got


def out_of_chroot(facts: Facts) -> str:
    """chroot into a folder while the present one is outside, then up."""
    folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"jail-{os.getpid()}")
    os.mkdir(folder)
    with contextlib.suppress(OSError):
        syscall("unshare", _NEW_USER)
    syscall("chroot", folder.encode())
    for _ in range(64):
        os.chdir("..")
    syscall("chroot", b".")
    with open(facts["path"], encoding="utf-8") as file:
        return file.read()


def calls_nobody_needs(facts: Facts) -> str:
    """System calls with a history: those that the kernel looked at, instead of refusing them at once."""
    looked_at = []
    for name in facts["calls"]:
        try:
            syscall(name, -1, -1, -1, -1, -1)
            looked_at.append(name)
        except OSError as error:
            if error.errno not in (1, 38):  # EPERM, ENOSYS
                looked_at.append(name)
    return any_of(looked_at, f"none of {len(facts['calls'])}")


def fault_handler(facts: Facts) -> str:
    """userfaultfd, in the mode that everybody may use too."""
    for flags in (0, 1):
        with contextlib.suppress(OSError):
            return f"descriptor {syscall('userfaultfd', flags)}"
    raise PermissionError("in neither mode")


def programs_in_kernel(facts: Facts) -> str:
    """bpf: a socket filter of two instructions, and a map."""
    attributes = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 4, 1), 120)
    return f"map {syscall('bpf', 0, attributes, 120)}"


def keyring(facts: Facts) -> str:
    """The keyring of the user, which all sessions share."""
    number = syscall(
        "add_key", b"user", b"hostile", facts["token"].encode(), len(facts["token"]), -4 & 0xFFFFFFFFFFFFFFFF
    )
    return f"key {number}"


def measured_cpu(facts: Facts) -> str:
    """perf_event_open: what other processes do, by their caches."""
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0) + bytes(96), 112)
    return f"descriptor {syscall('perf_event_open', attributes, 0, -1, -1, 0)}"


def fixed_addresses(facts: Facts) -> str:
    """personality: no random addresses, readable means executable."""
    syscall("personality", 0x0040000 | 0x0400000)
    return f"personality {syscall('personality', 0xFFFFFFFF):#x}"


def kernel_module(facts: Facts) -> str:
    """A module that is none: the kernel's complaint would be about its form."""
    try:
        syscall("init_module", ctypes.create_string_buffer(64), 64, b"")
    except OSError as error:
        if error.errno in (1, 38):
            raise
        return f"the kernel looked at it: {error.strerror}"
    return "loaded"


def kernel_log(facts: Facts) -> str:
    buffer = ctypes.create_string_buffer(4096)
    return f"{syscall('syslog', 3, buffer, 4096)} bytes"


def kernel_setting(facts: Facts) -> str:
    """A setting of this network, which has no effect outside."""
    with open("/proc/sys/net/ipv4/ip_default_ttl", "w", encoding="ascii") as file:
        file.write("63")
    return "set"


def host_name(facts: Facts) -> str:
    socket.sethostname(facts["token"][:20])
    return "set"


def typed_for_others(facts: Facts) -> str:
    """TIOCSTI on a terminal of its own making that it controls: what a shell reads after it."""
    import fcntl
    import pty
    import termios

    child, master = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSTI, b"x")
            os._exit(7)
        except OSError:
            os._exit(8)
    del master
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 7:
        raise PermissionError("refused")
    return "typed"


def higher_limits(facts: Facts) -> str:
    """Its own limits, raised again."""
    done = []
    for name in ("RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_CORE"):
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        if hard == resource.RLIM_INFINITY:
            done.append(f"{name} has none")
            continue
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (hard + 1, hard + 1))
            done.append(name)
    return any_of(done, "none")


def new_privileges(facts: Facts) -> str:
    """Whether the kernel would still give it more rights on exec: its own word for it."""
    return f"no_new_privs {libc.prctl(39, 0, 0, 0, 0)}"


def devices(facts: Facts) -> str:
    """Devices of the machine: memory, disks, kernel messages, virtual machines, file systems in user space."""
    names = ("mem", "kmsg", "kvm", "fuse", "net/tun", "vda", "sda", "port")
    flags = os.O_RDONLY | os.O_NONBLOCK
    return which_of(((name, partial(os.open, f"/dev/{name}", flags)) for name in names), "none")
