"""Paths that another process names, as that process means them."""

import os
import subprocess
from pathlib import Path

from tests.requirements import requirement
from transports.upstream.walls.paths import resolved


@requirement("box.sockets")
def test_a_socket_is_named_from_the_folder_of_the_process_that_names_it(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=tmp_path) as other:
        for path in ("s", "/proc/self/cwd/s", "/proc/thread-self/cwd/s"):
            assert resolved(path, other.pid) == f"{tmp_path.resolve()}/s"
        assert resolved("/dev/stdin", other.pid) == os.path.realpath(f"/proc/{other.pid}/fd/0")
