"""Files that are not the session's: to read, to change, and by ways around."""

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable

from .attempt import Facts, own_path, which_of
from .kernel import libc, syscall, text


def read(facts: Facts) -> str:
    with open(facts["path"], "rb") as file:
        return text(file.read(200_000))


def read_all(facts: Facts) -> str:
    """Each of some files; those that can be read."""
    found = []
    for path in facts["paths"]:
        with contextlib.suppress(OSError):
            found.append(f"{path}: {read({'path': path})}")
    return "\n".join(found)


def walk(facts: Facts) -> str:
    """Everything below a folder."""
    found = []
    for folder, _, names in os.walk(facts["path"]):
        for name in names:
            with contextlib.suppress(OSError):
                found.append(read({"path": os.path.join(folder, name)})[:300])
    return "\n".join(found)


def write(facts: Facts) -> str:
    with open(facts["path"], "a", encoding="utf-8") as file:
        file.write(facts["token"])
    return "written"


def fixed_paths(facts: Facts) -> str:
    """A folder with a mode of its own and a file that is renamed, in each of the folders."""
    for folder in facts["folders"]:
        os.mkdir(folder)
        os.chmod(folder, 0o700)
        with open(f"{folder}/new", "x", encoding="ascii") as file:
            file.write("text")
        os.rename(f"{folder}/new", f"{folder}/renamed")
        os.remove(f"{folder}/renamed")
        os.rmdir(folder)
    return "used"


def make(facts: Facts) -> str:
    """Folders, and a file below them."""
    os.makedirs(os.path.dirname(facts["path"]), exist_ok=True)
    return write(facts)


def remove(facts: Facts) -> str:
    os.unlink(facts["path"])
    return "removed"


def truncate(facts: Facts) -> str:
    os.truncate(facts["path"], 0)
    return "truncated"


def through_symlink(facts: Facts) -> str:
    link = own_path("link")
    os.symlink(facts["path"], link)
    return read({"path": link})


def through_hardlink(facts: Facts) -> str:
    link = own_path("hard")
    os.link(facts["path"], link)
    return read({"path": link})


def through_dots(facts: Facts) -> str:
    base = os.environ.get("TMPDIR") or os.getcwd()
    up = "/".join([".."] * base.count("/"))
    return read({"path": f"{base}/{up}{facts['path']}"})


def through_o_path(facts: Facts) -> str:
    """A descriptor that needs no right to open, opened again through /proc."""
    held = os.open(facts["path"], os.O_PATH)
    return read({"path": f"/proc/self/fd/{held}"})


def through_root_of_others(facts: Facts) -> str:
    """/proc/PID/root and cwd lead past a private file system."""
    found = []
    for pid in [*facts["pids"], 1, os.getppid()]:
        for way in ("root", f"task/{pid}/root"):
            with contextlib.suppress(OSError):
                found.append(read({"path": f"/proc/{pid}/{way}{facts['path']}"}))
    return "\n".join(found)


def through_handle(facts: Facts) -> str:
    """open_by_handle_at: by number instead of by path."""
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    syscall("name_to_handle_at", -100, facts["path"].encode(), handle, ctypes.byref(mount), 0)
    root = os.open("/home", os.O_RDONLY | os.O_DIRECTORY)
    opened = syscall("open_by_handle_at", root, handle, os.O_RDONLY)
    return text(os.read(opened, 10_000))


def rename_in(facts: Facts) -> str:
    own = own_path("stolen")
    os.rename(facts["path"], own)
    return read({"path": own})


def rename_out(facts: Facts) -> str:
    own = own_path("planted")
    write({"path": own, "token": facts["token"]})
    os.rename(own, facts["path"])
    return "renamed"


def exchange(facts: Facts) -> str:
    """renameat2 with RENAME_EXCHANGE: both ways at once."""
    own = own_path("planted")
    write({"path": own, "token": facts["token"]})
    if libc.renameat2(-100, own.encode(), -100, facts["path"].encode(), 2):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return read({"path": own})


def replace_folder(facts: Facts) -> str:
    """A link in the place of a folder of its own, which somebody with more rights may follow later."""
    base = os.environ.get("TMPDIR") or os.getcwd()
    moved = base + ".moved"
    os.rename(base, moved)
    os.symlink(facts["path"], base)
    return "replaced"


def open_up(facts: Facts) -> str:
    """What Landlock does not know: modes, times and attributes of files one cannot read."""
    path, done = facts["path"], []
    acts: dict[str, Callable[[], None]] = {
        "chmod": lambda: os.chmod(path, 0o666),
        "utime": lambda: os.utime(path, (1, 1)),
        "setxattr": lambda: os.setxattr(path, "user.owned", b"1"),
        "chown": lambda: os.chown(path, os.getuid(), os.getgid()),
    }
    for what, act in acts.items():
        try:
            act()
            done.append(what)
        except OSError as error:
            done.append(f"{what}: {error.strerror}")
    return ", ".join(done)


def watch(facts: Facts) -> str:
    """inotify on a folder of others: who opens what, and when."""
    descriptor = libc.inotify_init1(0o4000)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, facts["path"].encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "watches"


def special(facts: Facts) -> str:
    """A pipe, a socket and a device in a place that others use."""
    acts: dict[str, Callable[[], None]] = {
        "fifo": lambda: os.mkfifo(facts["path"] + ".fifo"),
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(facts["path"] + ".sock"),
        "device": lambda: os.mknod(facts["path"] + ".dev", 0o20666, os.makedev(1, 1)),
    }
    return which_of(acts.items(), "neither pipe, socket nor device")


def terminal(facts: Facts) -> str:
    """Write to the operator's terminal, and type into it."""
    descriptor = os.open(facts["path"], os.O_RDWR)
    os.write(descriptor, b"\x1b]0;" + facts["token"].encode() + b"\x07")
    return "written"


def lock(facts: Facts) -> str:
    """Hold a lock on the gateway's own files."""
    import fcntl

    with open(facts["path"], "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "locked"
