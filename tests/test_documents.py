"""The documents say what the code does."""

import json
import re
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel

from gateway.settings import (
    DEFAULT_CONTEXT_ENV,
    GatewaySettings,
    LimitSettings,
    SessionSettings,
    Settings,
    UpstreamSettings,
)
from tests.support.raw import tool_text
from tests.support.running import DEMO, running_gateway
from transports.upstream.stdio import INHERITED

ROOT = Path(__file__).parent.parent
CONFIGURATION = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", [GatewaySettings, SessionSettings, LimitSettings, UpstreamSettings])
def test_every_setting_is_in_the_reference(model: type[BaseModel]) -> None:
    rows = "\n".join(line for line in CONFIGURATION.splitlines() if line.startswith("| `"))
    for name in model.model_fields.keys() - {"session", "limits"}:
        assert f"`{name}`" in rows, name


def test_the_reference_names_nothing_that_does_not_exist() -> None:
    known = {
        name for m in (GatewaySettings, SessionSettings, LimitSettings, UpstreamSettings) for name in m.model_fields
    }
    cells = [line.split("|")[1] for line in CONFIGURATION.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} <= known


def test_defaults_in_the_reference_are_the_codes() -> None:
    for model in (SessionSettings(), LimitSettings()):
        for name, value in model:
            row = re.search(rf"^\| `{name}` \| ([^|]*) \|", CONFIGURATION, re.MULTILINE)
            assert row, name
            number = re.match(r"(\d+)( MiB)?", row[1])
            if number and isinstance(value, int | float):
                assert float(number[1]) * (1 << 20 if number[2] else 1) == value, name


def test_names_of_variables_are_the_codes() -> None:
    for name in (*DEFAULT_CONTEXT_ENV, *DEFAULT_CONTEXT_ENV.values(), *INHERITED):
        assert f"`{name}`" in CONFIGURATION, name


def test_the_example_configuration_is_valid() -> None:
    block = re.search(r"```json\n(.*?)```", CONFIGURATION, re.DOTALL)
    assert block
    assert Settings.model_validate(json.loads(block[1])).gateway.session.idle_ttl_s == 1800


def test_the_call_in_the_readme_works() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(curl .*?)```", readme, re.DOTALL)
    assert block
    headers = dict(re.findall(r"-H '([^:]+): ([^']+)'", block[1]))
    body = re.search(r"-d '(.*)'", block[1], re.DOTALL)
    assert body
    with running_gateway(command=DEMO) as gateway, httpx.Client() as http:
        answers = [http.post(gateway.url, content=body[1], headers=headers) for _ in range(2)]
        assert tool_text(answers[0]) == tool_text(answers[1]), "the cookie brings you back"
        http.cookies.clear()
        assert tool_text(http.post(gateway.url, content=body[1], headers=headers)) != tool_text(answers[0])


def test_every_link_leads_somewhere() -> None:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
