"""An ASGI app under `uvicorn --workers`, of which workers can be killed."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.gateway_process import ROOT
from tests.support.waiting import eventually


class Workers:
    """One uvicorn: a parent that starts again what ends, and its workers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8")

    def wait_ready(self) -> None:
        started = "Application startup complete"
        assert eventually(lambda: self.log.count(started) >= 2 or self._process.poll() is not None), self.log
        assert self._process.poll() is None, self.log

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


@contextlib.contextmanager
def running_workers(app: str, folder: Path, env: dict[str, str], *options: str) -> Iterator[Workers]:
    """The app `module:name` of that folder, served by two workers on a free port."""
    options = ("--app-dir", str(folder), "--workers", "2", "--port", "0", *options)
    command = [sys.executable, "-m", "uvicorn", app, *options]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    with tempfile.NamedTemporaryFile() as log:
        workers = Workers(subprocess.Popen(command, env=given, stderr=log, cwd=ROOT), Path(log.name))
        try:
            workers.wait_ready()
            yield workers
        finally:
            workers.stop()
