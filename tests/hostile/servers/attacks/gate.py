"""Against what decides in the server's stead on connections and attributes: races, arithmetic, endurance."""

import contextlib
import os
import socket
import threading
import time

from .attempt import Facts, flipping, own_path
from .kernel import text
from .network import talk


def unix_race(facts: Facts) -> str:
    """The folder of a socket of its own becomes a link to the folder of another while it is decided."""
    own, link = own_path("real"), own_path("flips")
    os.mkdir(own)
    with socket.socket(socket.AF_UNIX) as listener:
        name = os.path.basename(facts["path"])
        listener.bind(os.path.join(own, name))
        listener.listen(1_000)

        def flip() -> None:
            for target in (own, os.path.dirname(facts["path"])):
                os.symlink(target, link + ".new")
                os.rename(link + ".new", link)

        got = ""
        with flipping(flip):
            until = time.monotonic() + 1.5
            while time.monotonic() < until and "canary" not in got:
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(0.02)
                    connection.connect(os.path.join(link, name))
                    connection.sendall(facts["token"].encode())
                    got = text(connection.recv(100))
    return got or "raced"


def attribute_race(facts: Facts) -> str:
    """A file of its own becomes a link to another's while its mode is changed."""
    path = own_path("mode")
    own = own_path("mine")
    with open(own, "w", encoding="ascii"):
        pass

    def flip() -> None:
        for target in (own, facts["path"]):
            os.symlink(target, path + ".new")
            os.rename(path + ".new", path)

    tried = 0
    with flipping(flip):
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                os.chmod(path, 0o666)
            with contextlib.suppress(OSError):
                os.utime(path, (1, 1))
            tried += 1
    return f"tried {tried} times"


def honest(facts: Facts) -> str:
    """What every server may do: its own folder, a few processes and threads, its state, memory."""
    path = own_path("work")
    os.mkdir(path)
    with open(os.path.join(path, "file"), "w+", encoding="ascii") as file:
        file.write("work")
    os.rename(os.path.join(path, "file"), os.path.join(path, "renamed"))
    os.chmod(os.path.join(path, "renamed"), 0o600)
    os.utime(os.path.join(path, "renamed"), (1, 1))
    children = [os.fork() for _ in range(4)]
    if 0 in children:
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    thread = threading.Thread(target=bytearray, args=(32 << 20,))
    thread.start()
    thread.join()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["MCP_SESSION_SOCKET"])
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
    return "worked"


def honest_name(facts: Facts) -> str:
    """A connection to a host that it may reach, by its name."""
    with socket.create_connection((facts["name"], facts["port"]), 5) as connection:
        return talk(connection, facts)
