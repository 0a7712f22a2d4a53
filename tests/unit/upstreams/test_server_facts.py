"""What is known of a server, and the era that follows from it."""

import pytest

from gateway.protocol.merged_lists import Tools
from gateway.upstreams.server_facts import KnownFacts, ServerFacts, era_of
from transports.era import Era

MODERN = ServerFacts(discover=b'{"capabilities": {"tools": {}}}')
INITIALIZED = b'{"protocolVersion":"2025-11-25","capabilities":{"prompts":{}},"serverInfo":{"name":"s","version":"1"}}'
LEGACY = ServerFacts(initialize=INITIALIZED)
NEITHER = ServerFacts()
FAILED = ServerFacts(failure="it exited")


@pytest.mark.parametrize(
    ("facts", "client", "accepts_handshake", "era"),
    [
        (None, Era.MODERN, True, None),
        (LEGACY, Era.LEGACY, None, Era.LEGACY),
        (LEGACY, Era.MODERN, None, Era.LEGACY),
        (NEITHER, Era.MODERN, None, Era.LEGACY),
        (FAILED, Era.MODERN, None, Era.LEGACY),
        (MODERN, Era.MODERN, None, Era.MODERN),
        (MODERN, Era.MODERN, True, Era.MODERN),
        (MODERN, Era.LEGACY, None, None),
        (MODERN, Era.LEGACY, True, Era.LEGACY),
        (MODERN, Era.LEGACY, False, Era.MODERN),
    ],
)
def test_a_server_is_addressed_in_the_clients_era_if_it_speaks_that(
    facts: ServerFacts | None, client: Era, accepts_handshake: bool | None, era: Era | None
) -> None:
    assert era_of(facts, client, accepts_handshake=accepts_handshake) is era


def test_a_server_has_answered_if_it_speaks_an_era_and_is_described_to_modern_clients() -> None:
    assert [facts.has_answered for facts in (MODERN, LEGACY, NEITHER, FAILED)] == [True, True, False, False]
    assert MODERN.discovery == MODERN.discover and MODERN.capabilities == {"tools": {}}
    assert LEGACY.discovery is not None and LEGACY.capabilities == {"prompts": {}}
    assert NEITHER.discovery is None and NEITHER.capabilities == {} and not NEITHER.notifies


def test_a_server_notifies_of_changes_if_it_declares_that() -> None:
    expected = {
        b'"tools":{}': False,
        b'"resources":{"subscribe":false}': False,
        b'"prompts":{"listChanged":true}': True,
        b'"resources":{"subscribe":true}': True,
    }
    assert {text: ServerFacts(discover=b'{"capabilities":{%s}}' % text).notifies for text in expected} == expected


def test_what_is_known_is_what_was_learned_last() -> None:
    known = KnownFacts()
    assert known.tools() is None and known.handshake() is None and known.mirrored_schemas() == {}
    known.learn(LEGACY)
    assert known.handshake() == INITIALIZED and isinstance(known.tools(), Tools)
    known.learn(FAILED)
    assert known.handshake() is None and known.tools() is None, "it is not known what it lists"
    unlisted = KnownFacts(has_tools=False)
    unlisted.learn(LEGACY)
    assert unlisted.tools() is None
