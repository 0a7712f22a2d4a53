"""The server scenarios of the official suite against the gateway in front of a server with their fixtures."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.everything import loaded, served_over_http
from tests.conformance.official import Check, checks_in, suite
from tests.conformance.tasks_server import TASKS as TOOLS
from tests.support.compose_topology import running_topology
from tests.support.gateway_process import ROOT, running_gateway, server

EXTENSIONS = ("tasks-", "sep-2640-")
"""Scenarios that the SDK's server has no fixtures for."""
TASKS = tuple(
    f"tasks-{name}"
    for name in (
        *("lifecycle", "capability-negotiation", "wire-fields", "request-state-removal", "mrtr-input"),
        *("request-headers", "dispatch-and-envelope", "status-notifications", "required-task-error"),
        "mrtr-composition",
    )
)
MADE_AT_ONCE = [f"everything/{tool}" for tool in TOOLS]
ONE_ERA = ROOT / "tests/support/single_era_server.py"
TASKS_SERVER = (sys.executable, "-m", "tests.conformance.tasks_server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass of the suite, and how many checks it has to pass.

    The suite sends no credential, so that every run is that of an anonymous client. It returns no carrier of the
    session either, other than the session id of 2025-11-25.
    """

    revision: str
    shared: bool
    passes: int
    balanced: bool = False
    bridged: bool = False
    http: bool = False
    tasks: bool = False
    made: bool = False

    @property
    def name(self) -> str:
        said = {
            "tasks": self.tasks,
            "made": self.made,
            "balanced": self.balanced,
            "bridged": self.bridged,
            "http": self.http,
        }
        more = "".join(f" {word}" for word, is_so in said.items() if is_so)
        return f"{self.revision} {'shared' if self.shared else 'isolated'}{more}"


RUNS = (
    Run(revision="2025-11-25", shared=False, passes=83),
    Run(revision="2026-07-28", shared=True, passes=152),
    Run(revision="2026-07-28", shared=False, passes=152),
    # Through HAProxy and three gateways, in turns.
    Run(revision="2025-11-25", shared=False, passes=83, balanced=True),
    Run(revision="2026-07-28", shared=True, passes=150, balanced=True),
    Run(revision="2026-07-28", shared=False, passes=152, balanced=True),
    # A server that knows the handshake era only.
    Run(revision="2026-07-28", shared=False, passes=147, bridged=True),
    # A server behind a URL.
    Run(revision="2025-11-25", shared=False, passes=82, http=True),
    Run(revision="2026-07-28", shared=False, passes=152, http=True),
    # The tasks extension.
    Run(revision="2026-07-28", shared=True, passes=44, tasks=True),
    Run(revision="2026-07-28", shared=False, passes=44, tasks=True),
    Run(revision="2026-07-28", shared=False, passes=44, tasks=True, balanced=True),
    Run(revision="2026-07-28", shared=False, passes=44, tasks=True, http=True),
    # Tasks that the gateway makes.
    Run(revision="2026-07-28", shared=False, passes=42, tasks=True, made=True),
    Run(revision="2026-07-28", shared=False, passes=42, tasks=True, made=True, balanced=True),
)


def run_suite(run: Run) -> tuple[list[Check], str]:
    """The checks, and what the suite printed."""
    with tempfile.TemporaryDirectory() as folder, _fixtures(run) as entry, _served(run, entry) as url:
        to = ("--url", url, "--output-dir", folder)
        if run.tasks:
            with ThreadPoolExecutor(
                max_workers=5
            ) as pool:  # more would have too little of two cores for the suite's 30 s
                output = "".join(pool.map(lambda name: suite(["server", *to, "--scenario", name]), TASKS))
        else:
            output = suite(["server", *to, "--requirements", run.revision])
        checks = checks_in(Path(folder))
        return [check for check in checks if run.tasks or not check.scenario.startswith(EXTENSIONS)], output


@contextlib.contextmanager
def _fixtures(run: Run) -> Iterator[dict[str, Any]]:
    """The entry of the configuration for the server with the suite's fixtures."""
    if run.http:
        with served_over_http(TASKS_SERVER if run.tasks else ()) as url:
            yield {"url": url, "shared": run.shared}
    elif run.made:
        yield server((*TASKS_SERVER, "legacy"), env={"PYTHONPATH": str(ROOT)}, shared=run.shared)
    elif run.tasks:
        yield server(TASKS_SERVER, env={"PYTHONPATH": str(ROOT)}, shared=run.shared)
    else:
        with loaded() as command:
            bridged = (sys.executable, str(ONE_ERA), "legacy", *command, "legacy")
            yield server(bridged if run.bridged else command, shared=run.shared)


@contextlib.contextmanager
def _served(run: Run, everything: Mapping[str, Any]) -> Iterator[str]:
    """The URL of one gateway, or of HAProxy before three of them, which takes turns with every message."""
    # The suite asks about the protocol, and its servers lie in folders of its own.
    options: dict[str, Any] = {"limits": {"poll_after_s": 1.0}, "sandbox": "off"}
    if run.made:
        options["tasks"] = {"after_s": 3.0, "at_once": MADE_AT_ONCE}
    servers = {"everything": everything}
    if run.balanced:
        with running_topology(servers, options) as topology:
            yield topology.url
    else:
        with running_gateway(servers, options=options) as gateway:
            yield gateway.url
