"""A worker's environment, handed over where no other process of its user finds it.

What execve(2) is given stays in `/proc/PID/environ`, and others can read it until the process has closed itself to
them: long enough for a server that waits for it. So a worker is started with what a program needs in order to start,
and reads the rest from a descriptor without a name. Imports next to nothing, as `own_process`.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Final

__all__ = ["in_sight", "kept", "take"]

_VARIABLE: Final = "MCP_GATEWAY_WORKER_ENVIRONMENT"
_NEEDED: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
_NEEDED_PREFIXES: Final = ("DYLD_", "LC_", "LD_", "PYTHON")
_MOST_BYTES: Final = 16 << 20


def in_sight(environment: Mapping[str, str], kept_in: int) -> dict[str, str]:
    """What a worker is started with; the rest is in that descriptor."""
    needed = {k: v for k, v in environment.items() if k in _NEEDED or k.startswith(_NEEDED_PREFIXES)}
    return {**needed, _VARIABLE: str(kept_in)}


def kept(environment: Mapping[str, str]) -> int:
    """A file descriptor of a file that contains the whole environment. The caller passes it on, and closes it."""
    if hasattr(os, "memfd_create"):
        held = os.memfd_create("environment")
    else:
        with tempfile.TemporaryFile() as file:
            held = os.dup(file.fileno())
    data = json.dumps(dict(environment)).encode("utf-8")
    while data:
        data = data[os.write(held, data) :]
    return held


def take() -> None:
    """In a worker: have the environment that was kept."""
    given = os.environ.pop(_VARIABLE, "")
    if not given:
        return
    held, data = int(given), b""
    while piece := os.pread(held, _MOST_BYTES, len(data)):  # the other workers read it as well: it has one position
        data += piece
    os.close(held)
    os.environ.update(json.loads(data))
