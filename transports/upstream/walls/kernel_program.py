"""Asks a short process of its own what the kernel can: to try namespaces takes a fork, which a program with threads
should not do."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from transports.upstream.walls.kernel import Kernel, probe

__all__ = ["ask_kernel"]

_ROOT: Final = str(Path(__file__).parents[3])
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); from transports.upstream.walls.kernel_program import main; main()"
)
_TIMEOUT_S: Final = 20.0


def ask_kernel() -> Kernel:
    """What `probe` says. Takes a tenth of a second.

    Raises:
        OSError, subprocess.SubprocessError: the process cannot be started or fails.
    """
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, _ROOT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TIMEOUT_S)
    return Kernel(**json.loads(done.stdout))


def main() -> None:
    """Print what `probe` says."""
    sys.stdout.write(json.dumps(asdict(probe(namespaces=True))))
