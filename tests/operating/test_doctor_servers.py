"""The doctor measures the start of each server by itself, and says what a server that fails wrote last."""

import re

import pytest

from gateway.config.settings import Settings
from gateway.doctor.servers import check_servers
from tests.requirements import requirement
from tests.support.table_server import EXITS, GOOD, HANGS, TOKEN, slow, table_server


@pytest.mark.anyio
@requirement("ops.config", "proc.last-words")
async def test_each_start_is_measured_by_itself() -> None:
    servers = {
        "slow": table_server(slow(2)),
        "good": table_server(GOOD),
        "exit": table_server(EXITS),
        "hang": table_server(HANGS),
        "last": table_server(GOOD),
    }
    limits = {"start_timeout_s": 6}
    settings = Settings.model_validate({"mcpServers": servers, "gateway": {"limits": limits}})
    found = {finding.check: finding async for finding in check_servers(settings)}
    waited = re.search(r"takes (\d+\.\d) s to start", found["server slow"].what)
    assert waited is not None and 2.0 <= float(waited[1]) < 4.0, found["server slow"]
    for name in ("good", "last"):
        quick = re.search(r"starts in (\d+\.\d) s", found[f"server {name}"].what)
        assert quick is not None and float(quick[1]) < 1.0, "the others do not count"
    assert found["server exit"].state == "error"
    assert "exited with code 3" in found["server exit"].what and "[redacted] was refused" in found["server exit"].what
    assert found["server hang"].state == "error" and "it has not answered for 6 s" in found["server hang"].what
    assert "waiting for a license" in found["server hang"].what, "what it has written so far"
    assert not any(TOKEN in finding.what for finding in found.values())
