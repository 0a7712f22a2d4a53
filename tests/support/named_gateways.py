"""Gateways that many tests share, by name. A worker of a run starts each at most once, when a test first asks for it.

A test has sessions of its own there, leaves the gateway and its servers running, and asserts no total of them. One that
needs a gateway of its own (to stop it, to measure it, to change its files, for a setting) starts it, and says why.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.credentials import API_KEYS, KEYS, sha256
from tests.support.gateway_process import DEMO, PROBE, SCRIPTED, TASKS, WORK, RunningGateway, running_gateway, server
from tests.support.issuer import Issuer, running_issuer

CLAIMS: Final = {"trust": "mcp.trust", "workspace": "team", "permissions": "may"}
"""Where a token of the issuer has the facts of a session."""

BRIEF: Final = "brief-key"
"""The key of a principal whose sessions at the gateway `keyed` expire after `BRIEF_S`."""
BRIEF_S: Final = 0.3


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningGateway]:
    """The demo server, anonymous clients."""
    with running_gateway(command=DEMO) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def probe() -> Iterator[RunningGateway]:
    """The probe server, twice, with trace facts in results; servers that do not
    start or are not there; the log as JSON, event streams of 2024-11-05, and calls of `fail` as tasks."""
    servers = {
        "probe": server(PROBE),
        "other": server(PROBE),
        "refusing": server((*PROBE, "refuse")),
        "stubborn": server((*PROBE, "ignore-term")),
        "missing": server(("/does/not/exist",)),
        "gone": {"url": "http://127.0.0.1:9/mcp"},
        "lazy": server(PROBE, idle_stop_s=0.3),
        "shared": server(PROBE, shared=True),
    }
    limits = {"shutdown_grace_s": 0.3}
    options = {"result_meta": True, "limits": limits, "sse": True, "tasks": {"at_once": ["*/fail"]}}
    lines = {"gateway.observability.request_log.LINES_PER_S": 1_000}  # each test finds its own
    with running_gateway(servers, options={**options, "log_format": "json"}, constants=lines) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def keyed() -> Iterator[RunningGateway]:
    """The demo server and the probe, for API keys; alice has two of them."""
    keys = {
        "alice": [sha256(KEYS["alice"]), sha256(KEYS["alice-new"])],
        "bob": sha256(KEYS["bob"]),
        "brief": sha256(BRIEF),
    }
    options = {"api_keys": keys, "policy": {"rules": [{"principals": ["api-key:brief"], "idle_ttl_s": BRIEF_S}]}}
    with running_gateway({"demo": server(DEMO), "probe": server(PROBE)}, options=options) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    """An issuer of access tokens, whose keys stay."""
    with running_issuer() as running:
        yield running


@pytest.fixture(scope="session")
def issued(issuer: Issuer) -> Iterator[RunningGateway]:
    """The demo server and the probe (with handles), for tokens of the issuer with the scope `mcp`, which have `CLAIMS`,
    and for API keys. Workspaces `team-*` may write notes, and only `read.secrets` sees the server `secret`."""
    servers = {
        "demo": server(DEMO),
        "probe": server(PROBE, handles=True),
        "secret": server(DEMO, permissions=["read.secrets"]),
    }
    options = {
        "auth": issuer.settings(claims=CLAIMS),
        "api_keys": API_KEYS,
        "session": {"trust": "sandboxed"},
        "policy": {"rules": [{"workspaces": ["team-*"], "permissions": ["notes.write"]}]},
    }
    with running_gateway(servers, options=options) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def proxied() -> Iterator[RunningGateway]:
    """The demo server and the probe, for proxies here that say who calls. Rules give ada trust and workspace."""
    proxies = {"networks": ["127.0.0.0/8"], "subject_header": "X-User", "permissions_header": "X-May"}
    servers = {"demo": server(DEMO), "probe": server(PROBE)}
    rules = [{"principals": ["proxy:ada"], "trust": "direct", "workspace": "red"}]
    options = {"auth": {"proxies": proxies}, "session": {"trust": "sandboxed"}, "policy": {"rules": rules}}
    with running_gateway(servers, options=options) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def scripted() -> Iterator[RunningGateway]:
    """A server of each era, `legacy` and `modern`, that says what a test tells it to. Nothing becomes a task."""
    servers = {era: server((*SCRIPTED, era), methods={"vendor/*": {}}) for era in ("legacy", "modern")}
    with running_gateway(servers, options={"tasks": {"enabled": False}}) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tasked` has its servers write down."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    path.touch()  # a test may read it before a server writes
    return path


@pytest.fixture(scope="session")
def tasked(ledger: Path) -> Iterator[RunningGateway]:
    """Servers for alice and bob: one of each era without tasks, one with the extension, `own` with those of 2025-11-25,
    and the demo server. A session has eight tasks at most."""
    seen = {"read": [str(ledger.parents[1])]}  # a /tmp of their own would hide the files that tests make
    servers = {era: server((*WORK, era), env={"LEDGER": str(ledger)}, sandbox=seen) for era in ("legacy", "modern")}
    servers |= {"extension": server((*TASKS, "modern")), "own": server((*TASKS, "legacy")), "demo": server(DEMO)}
    offered = ["legacy/*", "own/*"]
    tasks = {"ttl_s": 600, "offered": offered}
    options = {"tasks": tasks, "api_keys": {name: sha256(KEYS[name]) for name in ("alice", "bob")}}
    few = {"gateway.tasks.gateway_tasks.quotas.MAX_PER_SESSION": 8}
    options["policy"] = {"check_arguments": True}
    with running_gateway(servers, options=options, constants=few) as gateway:
        yield gateway
