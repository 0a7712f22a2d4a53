"""An ASGI app under `uvicorn --workers`, of which workers can be killed."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.gateway_process import ROOT

__all__ = ["Workers", "running_workers"]


class Workers:
    """One uvicorn: a parent that starts again what ends, and its workers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.log = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log += line
            if self.log.count("Application startup complete") >= 2:
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        assert self._ready.wait(60) and self._process.poll() is None, self.log

    @property
    def base(self) -> str:
        """The URL."""
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", self.log)
        assert found, self.log
        return found[1]

    @property
    def pids(self) -> list[int]:
        """The workers that run now."""
        found = []
        for child in psutil.Process(self._process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie as well
                found += [child.pid] if "spawn_main" in " ".join(child.cmdline()) else []
        return found

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            for pid in self.pids:
                os.kill(pid, 9)
            self._process.kill()
            self._process.wait(10)
        self._reader.join(5)
        if self._process.stderr is not None:
            self._process.stderr.close()


@contextlib.contextmanager
def running_workers(app: str, folder: Path, env: dict[str, str], *options: str) -> Iterator[Workers]:
    """The app `module:name` of that folder, served by two workers on a free port."""
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        app,
        "--app-dir",
        str(folder),
        "--workers",
        "2",
        "--port",
        "0",
        *options,
    ]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    workers = Workers(subprocess.Popen(command, env=given, stderr=subprocess.PIPE, text=True, cwd=ROOT))
    try:
        workers.wait_ready()
        yield workers
    finally:
        workers.stop()
