"""What is measured: each subject in a process of its own, started as its documentation says."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
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
    """The compiled echo server. It is compiled again only if its source has changed."""
    target = ROOT / ".cache" / "bench" / "echo"
    source = ROOT / "bench" / "echo.c"
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"echo.{os.getpid()}")
    subprocess.run([program("cc", "gcc"), "-O2", "-Wall", "-o", str(made), str(source)], check=True)
    made.replace(target)  # in one step: another run may be about to start it
    return target


@contextlib.contextmanager
def served(subject: Subject) -> Iterator[tuple[str, psutil.Process]]:
    """The URL and the process, once it serves."""
    process = subprocess.Popen(
        list(subject.command),
        env={**os.environ, **subject.env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if subject.url else subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    readers: list[threading.Thread] = []
    try:
        url = subject.url or _announced(process, readers)
        if not url or not _answers(url, process):
            raise RuntimeError(f"{subject.command} did not start")
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:  # not every peer ends when it is told to
            process.kill()
            process.wait(15)
        for reader in readers:
            reader.join(5)
        if process.stderr is not None:
            process.stderr.close()


def _announced(process: subprocess.Popen[str], readers: list[threading.Thread]) -> str:
    """What it says on stderr; the rest of it is read, or a full pipe would stop it."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ready "):
            readers.append(threading.Thread(target=process.stderr.read, daemon=True))
            readers[0].start()
            return line.split()[1]
    return ""


def _answers(url: str, process: subprocess.Popen[str]) -> bool:
    """Whether it takes connections, within half a minute."""
    host, port = url.split("/")[2].split(":")
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        time.sleep(0.05)
    return False


PYTHON = (sys.executable, "-m")
