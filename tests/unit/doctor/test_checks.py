"""`gateway.doctor.checks`: which checks run, in which order."""

from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.doctor.checks import check_everything, check_settings

pytestmark = pytest.mark.anyio


async def test_a_configuration_that_cannot_be_read_is_the_only_finding(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"gateway": {"port": "x"}}')
    found = [finding async for finding in check_everything(path, "", "")]
    assert [(finding.check, finding.state) for finding in found] == [("configuration", "error")]
    assert "gateway.port" in found[0].what


async def test_every_part_of_the_surroundings_is_checked() -> None:
    found = [finding.check async for finding in check_settings(Settings())]
    assert found[:3] == ["keys", "access", "workspaces"] and "files" in found and "store" in found
    assert found.index("files") < found.index("store") < found.index("policy")
