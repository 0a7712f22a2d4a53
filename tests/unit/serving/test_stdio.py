"""How long the sessions of a gateway on stdin and stdout live."""

from typing import Any

import pytest

from gateway.config.settings import ConfigurationError, Settings
from gateway.serving import stdio
from tests.requirements import requirement


@requirement("ops.stdio-url", "ctx.stdio-front")
@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, (31_536_000, 31_536_000, 31_536_000)),
        ({"session": {"idle_ttl_s": 60}}, (60, 60, 31_536_000)),
        ({"session": {"max_age_s": 90, "unconfirmed_ttl_s": 9}}, (9, 31_536_000, 90)),
        ({"store": "sqlite:///sessions.db"}, (3_600, 3_600, 86_400)),
    ],
)
def test_a_session_lasts_as_long_as_its_connection_unless_the_operator_or_a_store_says_how_long(
    options: Any, times: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[float, ...]] = []

    def made(settings: Settings, **_: Any) -> None:
        session = settings.gateway.session
        found.append((session.unconfirmed_ttl_s, session.idle_ttl_s, session.max_age_s))
        raise ConfigurationError("seen")

    monkeypatch.setattr(stdio, "Gateway", made)
    with pytest.raises(ConfigurationError, match="seen"):
        stdio.serve_stdio(Settings.model_validate({"mcpServers": {"a": {"command": "a"}}, "gateway": options}))
    assert found == [times]
