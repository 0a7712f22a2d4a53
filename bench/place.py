"""A row of a table, and where its subject finds what it needs."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.load import Load
from bench.subjects import PYTHON, Subject, echo_server


@dataclass(frozen=True, kw_only=True)
class Row:
    """A subject under a load. With an `owner` its sessions are that one's, and calls are made here."""

    name: str
    subject: Subject
    load: Load = field(default_factory=Load)
    owner: Subject | None = None


@dataclass(frozen=True)
class Place:
    """Where subjects find what they need."""

    folder: Path
    redis: str
    collector: str = ""
    """URL of what takes OpenTelemetry spans."""

    @property
    def env(self) -> dict[str, str]:
        return {
            "BENCH_REDIS": self.redis.removeprefix("redis://").split("/")[0],
            "BENCH_ECHO": str(echo_server()),
        } | KEYS

    def relay(self) -> Subject:
        return Subject(command=(*PYTHON, "bench.subjects.serve", "bench.subjects.minimal_relay:app"), env=self.env)

    def bare(self) -> Subject:
        return Subject(command=(*PYTHON, "bench.subjects.serve", "bench.subjects.bare:app"), env=self.env)

    def app(self, name: str) -> Subject:
        return Subject(command=(*PYTHON, "bench.subjects.serve", f"bench.subjects.app:{name}"), env=self.env)

    def gateway(
        self,
        store: str = "",
        *more: str,
        options: Mapping[str, Any] | None = None,
        servers: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        **server_env: str,
    ) -> Subject:
        name = secrets.token_hex(4)
        entries = servers or {"echo": {"command": str(echo_server()), "env": server_env}}
        given = dict(options or {})
        # What is measured here is one client that hammers: no default is to stand in its way.
        gateway = {"store": store or self.redis, **given, "policy": {**UNLIMITED, **given.get("policy", {})}}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps({"mcpServers": entries, "gateway": gateway}))
        return Subject(
            command=(*PYTHON, "gateway", "run", "--port", "0", "--config", str(file), *more),
            env={**self.env, **(env or {})},
        )


UNLIMITED: Final = dict.fromkeys(("session_rate", "principal_rate", "principal_sessions", "principal_processes"), 0)
KEYS: Final = {"MCP_GATEWAY_KEYS": secrets.token_hex(32)}
