"""For which sessions the first answers of a legacy server's process are kept (`lists_fresh_s`)."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.upstreams import UpstreamSettings
from gateway.upstreams.first_answers import FirstAnswers
from gateway.upstreams.result_cache import ResultCache
from session_store import Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

pytestmark = requirement("cold.lists")

SESSION = replace(a_session(FakeClock()), metadata={"tier": "gold", "team": "a"}, token_hash="one")


def live_of(session: Session) -> Any:
    return SimpleNamespace(session=session, ended=False)


def conversation_of(*users: Any) -> Any:
    return SimpleNamespace(users=users, known_lists=None, initialize_result=b'{"serverInfo":{}}')


def answers() -> FirstAnswers:
    return FirstAnswers(ResultCache(1 << 20), 60)


def test_metadata_and_credential_are_facts_of_a_process() -> None:
    found = answers()

    def key(session: Session) -> bytes:
        asked = found.asked("tools/list", {}, live_of(session), session.context)
        assert asked is not None
        return asked.private

    same = replace(SESSION, id="another", metadata={"team": "a", "tier": "gold"})
    assert key(same) == key(SESSION)
    others = [replace(SESSION, metadata=metadata) for metadata in ({}, {"tier": "free", "team": "a"}, {"tier": "gold"})]
    keys = {key(session) for session in (SESSION, *others, replace(SESSION, token_hash="two"))}
    assert len(keys) == 5


def test_a_handshake_is_kept_of_an_unused_process_and_as_it_was_asked() -> None:
    found, live = answers(), live_of(SESSION)
    version = found.handshake_version()
    found.keep_handshake(live, conversation_of(live), version)
    found.keep_handshake(live_of(replace(SESSION, links=("x/legacy",))), conversation_of(), version)
    found.keep_handshake(live, conversation_of(), version - 1)
    assert found.handshake(live) is None
    found.keep_handshake(live, conversation_of(), version)
    assert found.handshake(live) == b'{"serverInfo":{}}'
    assert found.handshake(live_of(replace(SESSION, metadata={}))) is None


def test_a_server_behind_a_url_has_none() -> None:
    UpstreamSettings.model_validate({"command": "x", "lists_fresh_s": 60})
    with pytest.raises(ValueError, match=r"lists_fresh_s needs a command or in_process: .* URL"):
        UpstreamSettings.model_validate({"url": "http://127.0.0.1:1/mcp", "lists_fresh_s": 60})
