"""A stdio server with a record: `recording_server.py FILE COMMAND…` runs a command, and writes down what is said.

Each line of FILE is JSON: `{"from": "client" | "server", "line": the bytes as Latin-1}`, and `{"from": "end"}` when
stdin has ended. What passes is not changed.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def record_of(path: Path) -> list[Any]:
    """The entries of a record, or of all records whose names begin with that path's."""
    found = []
    for file in sorted(path.parent.glob(f"{path.name}*")):
        found += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return found


def messages_of(path: Path) -> list[Any]:
    """The messages of the client, decoded."""
    return [json.loads(entry["line"].encode("latin-1")) for entry in record_of(path) if entry["from"] == "client"]


def main() -> None:
    # A file for each process: the gateway starts one to learn what the server is, and others for sessions.
    with open(f"{sys.argv[1]}.{os.getpid()}", "a", encoding="utf-8", buffering=1) as file:
        lock = threading.Lock()

        def note(sender: str, line: bytes) -> None:
            with lock:
                file.write(json.dumps({"from": sender, "line": line.decode("latin-1")}) + "\n")

        child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None and child.stdout is not None
        answers = child.stdout

        def answer() -> None:
            for line in answers:
                note("server", line)
                os.write(1, line)
            os._exit(child.wait() & 0xFF)  # it has ended, whether stdin has or not

        threading.Thread(target=answer).start()
        for line in sys.stdin.buffer:
            note("client", line)
            child.stdin.write(line)
            child.stdin.flush()
        note("end", b"")
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    main()
