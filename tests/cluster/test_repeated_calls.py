"""Calls that entered through the owner of their session, which is killed before it has answered."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from gateway.config.model import Trust
from tests.cluster.test_replicas import KEYS, RESTARTED, SERVERS, replica
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, events
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually


@pytest.fixture
def three(redis_server: RunningRedis) -> Iterator[list[RunningGateway]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(replica(redis_server)) for _ in range(3)]


def at(gateway: RunningGateway, client: Legacy, http: httpx.Client) -> Legacy:
    """The same client, at that replica."""
    other = Legacy(f"{gateway.base}/servers/probe/mcp", http)
    other.session = client.session
    return other


def killed_in_a_call(owner: RunningGateway, client: Legacy, tool: str, note: Path, **more: Any) -> str:
    """Send a call through the owner of a session, and kill the owner while the tool works. Returns the id of the event
    that begins the answer."""
    arguments = {"seconds": 2, "note": str(note), **more}
    body = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    text = ""
    with httpx.Client(timeout=20) as own:
        with own.stream("POST", client.url, json=body, headers=client.request_headers()) as stream:
            chunks = stream.iter_text()
            while "id: " not in text or "\n\n" not in text:
                text += next(chunks)
            begun = next(event_id for event_id, _ in events(text) if event_id)
            assert eventually(note.exists, within_s=5)
            with client.get(begun) as resumed:  # so the event is in the store
                assert resumed.status_code == 200
            owner.kill()
    return begun


def rest_of(client: Legacy, event_id: str) -> list[tuple[str, Any]]:
    """The ids and messages behind that event."""
    with client.get(event_id) as resumed:
        assert resumed.status_code == 200, resumed.read()
        return [(name, json.loads(data)) for name, data in events(resumed.read().decode()) if data]


def assert_unknown(rest: list[tuple[str, Any]], note: Path) -> None:
    ((_, answer),) = rest
    assert (answer["id"], answer["error"]["code"]) == ("mine", -32014) and note.read_text() == "called\n"


@requirement("rep.honest", "spec.stream-log")
def test_a_call_that_may_be_repeated_is_made_again_once_when_its_client_comes_back(
    three: list[RunningGateway], http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    owner, *others = three
    client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
    begun = killed_in_a_call(owner, client, "nap", note)
    answers: list[list[tuple[str, Any]]] = []

    def resume(gateway: RunningGateway) -> None:
        with httpx.Client(timeout=20) as own:
            answers.append(rest_of(at(gateway, client, own), begun))

    threads = [threading.Thread(target=resume, args=(gateway,)) for gateway in others * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    resume(others[0])
    assert len(answers) == 5 and all(answer == answers[0] for answer in answers), "one stream, which all follow"
    ((event_id, answer),) = answers[0]
    assert answer["id"] == "mine" and answer["result"]["content"][0]["text"] == "slept"
    assert answer["result"]["_meta"][RESTARTED] == {"reason": "takeover"}
    assert note.read_text() == "called\n" * 2
    assert rest_of(at(others[1], client, http), event_id) == []


@requirement("rep.honest", "rep.no-retry", "spec.stream-log")
@pytest.mark.parametrize(("tool", "more"), [("sleep", {}), ("nap", {"padding": "x" * (64 << 10)})])
def test_a_call_that_may_not_be_repeated_or_is_too_large_to_be_kept_is_executed_once(
    three: list[RunningGateway], http: httpx.Client, tmp_path: Path, tool: str, more: dict[str, str]
) -> None:
    note = tmp_path / "note"
    client = Legacy(f"{three[0].base}/servers/probe/mcp", http).open()
    begun = killed_in_a_call(three[0], client, tool, note, **more)
    assert_unknown(rest_of(at(three[1], client, http), begun), note)


@requirement("rep.honest", "rep.no-retry")
def test_a_call_that_is_made_again_is_not_made_a_third_time(
    three: list[RunningGateway], http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    client = Legacy(f"{three[0].base}/servers/probe/mcp", http).open()
    begun = killed_in_a_call(three[0], client, "nap", note)
    with at(three[1], client, http).get(begun) as resumed:
        assert resumed.status_code == 200
        assert eventually(lambda: note.read_text() == "called\n" * 2, within_s=10)
        three[1].kill()
    ((_, answer),) = rest_of(at(three[2], client, http), begun)
    assert (answer["id"], answer["error"]["code"]) == ("mine", -32014) and note.read_text() == "called\n" * 2


@contextlib.contextmanager
def alone(store: Path, **options: Any) -> Iterator[RunningGateway]:
    settings = {"store": f"sqlite:///{store}", **options}
    with running_gateway(SERVERS, options=settings, env=KEYS, must_stop=False) as gateway:
        yield gateway


@requirement("rep.honest", "spec.stream-log")
def test_a_gateway_that_is_started_again_makes_the_call_again(http: httpx.Client, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with alone(tmp_path / "store") as gateway:
        client = Legacy(f"{gateway.base}/servers/probe/mcp", http).open()
        begun = killed_in_a_call(gateway, client, "nap", note)
    with alone(tmp_path / "store") as gateway:
        for _ in range(2):
            ((_, answer),) = rest_of(at(gateway, client, http), begun)
            assert answer["id"] == "mine" and answer["result"]["content"][0]["text"] == "slept"
            assert answer["result"]["_meta"][RESTARTED] == {"reason": "gateway_restart"}
    assert note.read_text() == "called\n" * 2


@requirement("rep.honest", "rep.no-retry")
def test_policy_is_asked_again_for_a_call_that_is_made_again(http: httpx.Client, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with alone(tmp_path / "store") as gateway:
        client = Legacy(f"{gateway.base}/servers/probe/mcp", http).open()
        begun = killed_in_a_call(gateway, client, "nap", note)
    with alone(tmp_path / "store", policy={"read_only": list(get_args(Trust))}) as gateway:
        assert_unknown(rest_of(at(gateway, client, http), begun), note)
