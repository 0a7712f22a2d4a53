"""One gateway for most tests of the letter: servers of both eras, with a record of what the gateway sends them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_process import PROBE, ROOT, RunningGateway, running_gateway, server

RECORDING = (sys.executable, str(ROOT / "tests/support/recording_server.py"))


class Letter:
    """A gateway in front of `old` (legacy only), `new`, `changing` and `common` (modern only; the last two notify of
    changes, and `common` is one process for all)."""

    def __init__(self, gateway: RunningGateway, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder

    def url(self, name: str) -> str:
        """Where one server is served."""
        return f"{self.gateway.base}/servers/{name}/mcp"

    def record(self, name: str) -> Path:
        """Where the records of a server's processes begin."""
        return self.folder / name / "record.jsonl"

    def records(self, name: str) -> list[Path]:
        """The records of a server's processes, one file each."""
        return sorted(self.record(name).parent.iterdir())


@pytest.fixture(scope="session")
def letter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Letter]:
    folder = tmp_path_factory.mktemp("letter")

    def recorded(name: str, *arguments: str) -> tuple[str, ...]:
        own = folder / name
        own.mkdir()
        return (*RECORDING, str(own / "record.jsonl"), *PROBE, *arguments)

    servers = {
        "old": server(recorded("old", "legacy-only")),
        "new": server(recorded("new", "modern-only", "mirror")),
        "changing": server(recorded("changing", "modern-only", "notifies")),
        "common": server(recorded("common", "modern-only", "notifies"), shared=True),
    }
    with running_gateway(servers) as gateway:
        yield Letter(gateway, folder)
