"""What is measured: each subject in a process of its own, started as its documentation says."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.tools.programs import program

__all__ = ["ROOT", "Subject", "echo_server", "served"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """How it is started. It says `ready URL` on stderr, unless the URL is known and asked until it answers."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""


def echo_server() -> Path:
    """The compiled echo server."""
    target = ROOT / ".cache" / "bench" / "echo"
    target.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / "bench" / "echo.c"
    subprocess.run([program("cc", "gcc"), "-O2", "-Wall", "-o", str(target), str(source)], check=True)
    return target


@contextlib.contextmanager
def served(subject: Subject) -> Iterator[tuple[str, psutil.Process]]:
    """The URL and the process, once it serves."""
    process = subprocess.Popen(
        list(subject.command), env={**os.environ, **subject.env}, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stderr is not None
    try:
        url = ""
        for line in process.stderr:
            if line.startswith("ready "):
                url = line.split()[1]
                break
        if not url:
            raise RuntimeError(f"{subject.command} did not start")
        # What it logs is read, or a full pipe would stop it.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


PYTHON = (sys.executable, "-m")
