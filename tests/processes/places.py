"""Where servers behind walls are tried: each user, without namespaces and with them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.sandbox.sandbox_checks import ask_kernel
from tests.support.walled import USERS, Outcome, run_walled
from transports.upstream.walls.wall_specification import Walls

KERNEL: Final = ask_kernel()
needs_walls: Final = pytest.mark.skipif(
    KERNEL.landlock < 6 or bool(KERNEL.filters), reason="this kernel has no Landlock of ABI 6, or no seccomp filters"
)

TRY: Final = """
import errno, json, os, signal, socket, subprocess, sys
def attempts(expected, **calls):
    '''Tell of each call that ends otherwise than with one of these errors, or than well if there are none.'''
    for name, call in calls.items():
        found = ""
        try:
            call()
        except OSError as error:
            found = {"EROFS": "EACCES"}.get(code := errno.errorcode.get(error.errno, "?"), code)
        if found not in expected.split(" "):
            print(json.dumps([name, found]), flush=True)
def write(path, flags=os.O_WRONLY | os.O_CREAT):
    os.close(os.open(path, flags, 0o600))
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A user, a folder that is granted to be written, one to be read, and one that is not granted."""

    user: int | None
    own: Path
    read: Path
    closed: Path
    walls: Walls

    def run(self, script: str, walls: Walls | None = None) -> Outcome:
        folders = f"own, read, closed = {str(self.own)!r}, {str(self.read)!r}, {str(self.closed)!r}\n"
        return run_walled(TRY + folders + script, walls or self.walls, user=self.user, cwd=str(self.own))

    def unexpected(self, script: str) -> list[Any]:
        """The attempts that ended otherwise than the script says, each with the name of its error."""
        outcome = self.run(script)
        assert (outcome.failed, outcome.code, outcome.errors) == ("", 0, []), outcome
        return outcome.said


WHO: Final = {
    f"{'unprivileged' if user else 'own-user'}{'-apart' * apart}": (user, apart) for user in USERS for apart in (0, 1)
}
