"""`gateway.cli.connected_accounts`: what is listed, also if it is nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import connected_accounts, gateway_or_store
from gateway.context.consented_tokens import Connection
from tests.requirements import requirement
from tests.unit.upstreams.parts import returning

CONNECTION = Connection(
    principal="api-key:ada", secret="files", resource="https://a.example", since=0.0, expires=0.0, is_refreshed=True
)


@requirement("cred.consent")
@pytest.mark.parametrize(
    ("found", "options", "shown", "hidden"),
    [
        ([], [], "nobody has connected an account: secrets from files, variables, commands", "principal"),
        ([], ["--json"], '{"credentials": []}', "nobody"),
        ([CONNECTION], [], "api-key:ada", "nobody"),
    ],
)
def test_a_list_of_no_accounts_says_so(
    found: list[Connection], options: list[str], shown: str, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(credentials=returning(found))

    monkeypatch.setattr(gateway_or_store, "open_target", opened)
    ran = CliRunner().invoke(connected_accounts.app, ["list", *options])
    assert ran.exit_code == 0 and shown in ran.output and hidden not in ran.output, ran.output
