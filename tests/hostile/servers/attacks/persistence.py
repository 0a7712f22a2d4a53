"""Staying after the session, or coming back."""

import contextlib
import os
import time

from .attempt import Facts


def daemon(facts: Facts) -> str:
    """Twice forked, in a session of its own, deaf to signals."""
    import signal

    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            for descriptor in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.write(writes, str(os.getpid()).encode())
            time.sleep(60)
        os._exit(0)
    os.wait()
    return f"daemon {os.read(reads, 20).decode()}"


def note_for_next(facts: Facts) -> str:
    """A word in every place that it may write to, for the next session of this server."""
    left = []
    for path in _notes(facts):
        with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
            file.write(facts["token"])
            left.append(path)
    return "left: " + " ".join(left)


def _notes(facts: Facts) -> list[str]:
    places = {os.environ.get(name, "") for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    folders = {*places, os.getcwd(), "/tmp", "/var/tmp", "/dev/shm", *facts["folders"]} - {""}
    return [os.path.join(folder, "note-for-next") for folder in sorted(folders)]


def note_from_last(facts: Facts) -> str:
    """What the session before has left, in the same places."""
    found = []
    for path in _notes(facts):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            found.append(f"{path}: {file.read()}")
    return "found: " + " ".join(found)
