"""The client scenarios of the official suite: the SDK's client, the gateway, and the suite's server.

The scenarios judge the client by what the suite's server receives. Without a gateway none of their checks fails. The
scenarios `auth/` are left out: their client authorizes itself at the suite's server, while a client of the gateway
authorizes itself at the gateway, which never passes a client's token on.

`python -m tests.conformance.clients CLIENT [REVISION] URL` is the command of a scenario: it runs the script CLIENT with
the URL of a gateway in front of the suite's server. With a REVISION the client speaks that one.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.conformance.official import Check, checks_in, suite
from tests.support.gateway_process import running_gateway
from tests.tools.obtain import sdk_source

ROOT = Path(__file__).parents[2]
CLIENT = ".github/actions/conformance/client.py"
LEFT_OUT = "auth/"
AT_ONCE = 3
WORSE = ("SUCCESS", "SKIPPED", "WARNING", "FAILURE")
"""What the suite says of a check, from good to bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRun:
    """`revision` is that of the suite's server, and of the client too unless `client` is another. `passes`: how many
    checks have to pass."""

    revision: str
    passes: int
    client: str = ""

    @property
    def name(self) -> str:
        return f"client {self.client or self.revision}" + (f" server {self.revision}" if self.client else "")


RUNS = (
    ClientRun(revision="2025-11-25", passes=20),
    ClientRun(revision="2026-07-28", passes=35),
    ClientRun(revision="2026-07-28", passes=32, client="2025-11-25"),
    ClientRun(revision="2025-11-25", passes=20, client="2026-07-28"),
)


def run_suite(run: ClientRun) -> tuple[list[Check], str]:
    """The checks of all scenarios, each once, and what the suite printed."""
    client = sdk_source(version("mcp")) / CLIENT
    typed = " ".join((sys.executable, "-m", "tests.conformance.clients", str(client), run.client)).strip()
    path = f"PYTHONPATH={ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=AT_ONCE) as pool:

        def one(scenario: str) -> str:
            to = ("--spec-version", run.revision, "--timeout", "60000", "--output-dir", folder)
            return suite(["client", "--command", f"env {path} {typed}", "--scenario", scenario, *to])

        output = "\n".join(pool.map(one, _scenarios(run.revision)))
        worst: dict[tuple[str, str], Check] = {}
        for check in checks_in(Path(folder)):  # an id may occur several times in a scenario: the worst counts
            key = (check.scenario, check.id)
            worst[key] = max(worst.get(key, check), check, key=lambda each: WORSE.index(each.status))
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
