"""`make conformance`: the official suite against the gateway in front of a stdio server.

Compares every check with what is expected, in either direction, tasks and skills extensions aside. The suite's own
totals would not do: they leave out warnings and skipped checks, so a check that gets worse only makes them smaller.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance.everything import loaded, served_over_http
from tests.support.compose_topology import running_topology
from tests.support.gateway_process import running_gateway, server
from tests.tools.obtain import CACHE, node, node_environment, npm_packages, sdk_source

SUITE = {"@modelcontextprotocol/conformance": "0.2.0-alpha.12"}
TIMEOUT_S = 300
EXTENSIONS = ("tasks-", "sep-2640-")
EXPECTED = tomllib.loads(Path(__file__).with_name("expected.toml").read_text(encoding="utf-8"))
FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\dZ-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass of the suite, and how many checks it has to pass."""

    revision: str
    shared: bool
    passes: int
    balanced: bool = False
    bridged: bool = False
    http: bool = False

    @property
    def name(self) -> str:
        more = (" balanced" if self.balanced else "") + (" bridged" if self.bridged else "")
        more += " http" if self.http else ""
        return f"{self.revision} {'shared' if self.shared else 'isolated'}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check as the suite reports it; an id may occur several times in a scenario."""

    scenario: str
    id: str
    status: str
    message: str


RUNS = (
    Run(revision="2025-11-25", shared=False, passes=83),
    Run(revision="2026-07-28", shared=True, passes=152),
    Run(revision="2026-07-28", shared=False, passes=150),
    # Through HAProxy and three gateways, in turns.
    Run(revision="2025-11-25", shared=False, passes=83, balanced=True),
    Run(revision="2026-07-28", shared=True, passes=150, balanced=True),
    Run(revision="2026-07-28", shared=False, passes=150, balanced=True),
    # A server that knows the handshake era only.
    Run(revision="2026-07-28", shared=False, passes=147, bridged=True),
    # A server behind a URL.
    Run(revision="2025-11-25", shared=False, passes=82, http=True),
    Run(revision="2026-07-28", shared=False, passes=152, http=True),
)


@contextlib.contextmanager
def _everything(run: Run) -> Iterator[dict[str, Any]]:
    """The entry of the configuration for the server with the suite's fixtures."""
    if run.http:
        with served_over_http() as url:
            yield {"url": url, "shared": run.shared}
    else:
        with loaded() as command:
            yield server((*command, "legacy") if run.bridged else command, shared=run.shared)


@contextlib.contextmanager
def _served(run: Run, everything: Mapping[str, Any]) -> Iterator[str]:
    """The URL of one gateway, or of HAProxy before three of them, which takes turns with every message."""
    options = {"limits": {"poll_after_s": 1.0}}
    servers = {"everything": everything}
    if run.balanced:
        with running_topology(servers, options) as topology:
            yield topology.url
    else:
        with running_gateway(servers, options=options) as gateway:
            yield gateway.url


def run_suite(run: Run) -> tuple[list[Check], str]:
    """The checks, and what the suite printed."""
    command = [str(node()), str(npm_packages(SUITE) / "node_modules/.bin/conformance"), "server"]
    with (
        tempfile.TemporaryDirectory() as folder,
        _everything(run) as everything,
        _served(run, everything) as url,
    ):
        finished = subprocess.run(
            [*command, "--url", url, "--requirements", run.revision, "--output-dir", folder],
            env=node_environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return list(_checks(Path(folder))), finished.stdout + finished.stderr


def _checks(folder: Path) -> Iterator[Check]:
    for path in sorted(folder.glob("*/checks.json")):
        name = FOLDER.fullmatch(path.parent.name)
        scenario = name[1] if name else path.parent.name
        for check in json.loads(path.read_text(encoding="utf-8")):
            # INFO is what the suite saw on the way, or an option of the specification that was not taken.
            if check["status"] != "INFO" and not scenario.startswith(EXTENSIONS):
                message = check.get("errorMessage") or check["description"]
                yield Check(scenario=scenario, id=check["id"], status=check["status"], message=message)


def passed(checks: list[Check]) -> int:
    return sum(check.status == "SUCCESS" for check in checks)


def differences(run: Run, checks: list[Check], expected: Mapping[str, Any]) -> Iterator[str]:
    """What is not as expected, a line each."""
    unmet = {
        (scenario, check): entry["status"] for scenario, group in expected.items() for check, entry in group.items()
    }
    for check in checks:
        wanted = unmet.get((check.scenario, check.id), "SUCCESS")
        if check.status != wanted:
            yield f"{check.scenario}: {check.id}: {check.status}, {wanted} expected: {check.message}"
    for scenario, name in unmet.keys() - {(check.scenario, check.id) for check in checks}:
        yield f"{scenario}: {name}: not reported"
    if passed(checks) != run.passes:
        yield f"{passed(checks)} checks passed, {run.passes} expected"


def main() -> int:
    """0 when every run is as expected, or every one with `argv[1]` in its name."""
    sdk_source(version("mcp"))  # fetched before the first server starts, which has 30 s
    good = 0
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    runs = [run for run in RUNS if only in run.name]
    for run in runs:
        expected = EXPECTED.get(run.name, {})
        checks, output = run_suite(run)
        found = list(differences(run, checks, expected))
        good += not found
        print(f"{run.name}: {passed(checks)} of {len(checks)} checks passed", flush=True)
        for scenario, group in expected.items():
            for name, entry in group.items():
                print(f"  expected: {scenario}: {name}: {entry['status']}: {entry['reason']}")
        for difference in found:
            print(f"  not as expected: {difference}")
        if found:
            log = CACHE / f"conformance-{run.name.replace(' ', '-')}.log"
            log.write_text(output, encoding="utf-8")
            print(f"  the suite's own words: {log.relative_to(CACHE.parent)}")
    print(f"{good} runs as expected, {len(runs) - good} not")
    return int(good != len(runs))


if __name__ == "__main__":
    sys.exit(main())
