"""The client scenarios of the official suite: the SDK's client, the gateway, and the suite's server.

The scenarios judge the client by what the suite's server receives. Each is run without a gateway and through one, and
what passes alone must pass through the gateway. The scenarios `auth/` are left out: their client authorizes itself at
the suite's server, while a client of the gateway authorizes itself at the gateway, which never passes a client's token
on.

`python -m tests.conformance.clients CLIENT [REVISION] URL` is the command of a scenario: it runs the script CLIENT with
the URL of a gateway in front of the suite's server. With a REVISION the client speaks that one.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance.official import Check, Result, checks_in, reasons, suite
from tests.support.gateway_process import running_gateway
from tests.tools.obtain import sdk_source

ROOT = Path(__file__).parents[2]
CLIENT = ".github/actions/conformance/client.py"
LEFT_OUT = "auth/"
AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRun:
    """`revision` is that of the suite's server, and of the client too unless `client` is another."""

    revision: str
    client: str = ""

    @property
    def name(self) -> str:
        return f"client {self.client or self.revision}" + (f" server {self.revision}" if self.client else "")


RUNS = (
    ClientRun(revision="2025-11-25"),
    ClientRun(revision="2026-07-28"),
    ClientRun(revision="2026-07-28", client="2025-11-25"),
    ClientRun(revision="2025-11-25", client="2026-07-28"),
)


def compared(run: ClientRun, expected: Mapping[str, Any]) -> Result:
    """What passes without a gateway and not through it; `expected`: scenario → check → its status and the reason."""
    alone, _ = _alone(run.revision)
    spoken = (run.client,) if run.client else ()
    through, output = _checks(run.revision, ("-m", "tests.conformance.clients", _client(), *spoken))
    reached = {(check.scenario, check.id): check for check in through}
    found: list[str] = []
    met = 0
    for check in alone:
        now = reached.get((check.scenario, check.id))
        status, message = (now.status, now.message) if now else ("not reported", "")
        wanted = expected.get(check.scenario, {}).get(check.id, {}).get("status", check.status)
        met += status == check.status
        if status != wanted:
            found.append(f"{check.scenario}: {check.id}: {status}, {wanted} expected: {message}")
    summary = f"{met} of {len(alone)} checks as without a gateway"
    return Result(summary=summary, expected=reasons(expected), found=tuple(found), output=output)


@cache
def _alone(revision: str) -> tuple[list[Check], str]:
    return _checks(revision, (_client(),))


def _client() -> str:
    return str(sdk_source(version("mcp")) / CLIENT)


def _checks(revision: str, command: Sequence[str]) -> tuple[list[Check], str]:
    """The checks of all scenarios, each once, and what the suite printed."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        typed = " ".join((sys.executable, *command))
        path = f"PYTHONPATH={ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

        def one(scenario: str) -> str:
            to = ("--spec-version", revision, "--timeout", "60000", "--output-dir", folder)
            return suite(["client", "--command", f"env {path} {typed}", "--scenario", scenario, *to])

        output = "\n".join(pool.map(one, _scenarios(revision)))
        worst: dict[tuple[str, str], Check] = {}
        for check in checks_in(Path(folder)):  # an id may occur several times in a scenario: what fails counts
            key = (check.scenario, check.id)
            if key not in worst or worst[key].status == "SUCCESS":
                worst[key] = check
        return list(worst.values()), output


def _scenarios(revision: str) -> list[str]:
    listed = suite(["list", "--requirements", revision]).partition("Client scenarios")[2]
    names = [line.split()[1] for line in listed.splitlines() if line.strip().startswith("- ")]
    return [name for name in names if not name.startswith(LEFT_OUT)]


def main(client: str, *more: str) -> int:
    *revision, url = more
    spoken = {"MCP_CONFORMANCE_PROTOCOL_VERSION": revision[0]} if revision else {}
    with running_gateway({"tested": {"url": url}}) as gateway:
        command = [sys.executable, client, gateway.url]
        return subprocess.run(command, env={**os.environ, **spoken}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
