"""Files that are not the session's: to read, to change, and by ways around."""

import contextlib
import os
from collections.abc import Callable

from .attempt import Facts, own_path
from .kernel import text


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


def remove(facts: Facts) -> str:
    os.unlink(facts["path"])
    return "removed"


def through_symlink(facts: Facts) -> str:
    link = own_path("link")
    os.symlink(facts["path"], link)
    return read({"path": link})


def through_hardlink(facts: Facts) -> str:
    link = own_path("hard")
    os.link(facts["path"], link)
    return read({"path": link})


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


def rename_out(facts: Facts) -> str:
    own = own_path("planted")
    write({"path": own, "token": facts["token"]})
    os.rename(own, facts["path"])
    return "renamed"


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


def terminal(facts: Facts) -> str:
    """Write to the operator's terminal, and type into it."""
    descriptor = os.open(facts["path"], os.O_RDWR)
    os.write(descriptor, b"\x1b]0;" + facts["token"].encode() + b"\x07")
    return "written"
