"""Lists are read page by page, and items that no client can name are left out."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from gateway.protocol.listing import MOST_TOOLS
from gateway.upstreams.list_pages import GATEWAY_META, ListReader
from transports.era import Era
from transports.jsonrpc import Message, encode

READER = ListReader(name_chars=16, uri_chars=256)


class Conversation:
    """Answers with these results, one after another."""

    def __init__(self, *results: Any, era: Era = Era.LEGACY) -> None:
        self.era = era
        self.asked: list[dict[str, Any]] = []
        self._results = list(results)

    async def ready(self) -> None:
        """It is open."""

    async def ask(self, method: str, params: bytes) -> Message:
        self.asked.append(msgspec.json.decode(params))
        result = self._results.pop(0)
        if result is None:
            return Message(jsonrpc="2.0", id=1, error=msgspec.Raw(b"{}"))
        return Message(jsonrpc="2.0", id=1, result=msgspec.Raw(encode(result)))


def read(conversation: Conversation, method: str = "tools/list") -> list[dict[str, Any]]:
    return asyncio.run(READER.all_items(method, cast("Any", conversation)))


@pytest.mark.parametrize(
    ("method", "listed", "key", "most_chars"),
    [
        ("tools/list", "tools", "name", 16),
        ("prompts/list", "prompts", "name", 16),
        ("resources/list", "resources", "uri", 256),
        ("resources/templates/list", "resourceTemplates", "uriTemplate", 256),
    ],
)
def test_the_limits_of_requests_bound_the_names_in_lists(method: str, listed: str, key: str, most_chars: int) -> None:
    page = {listed: [{key: "x" * most_chars}, {key: "x" * (most_chars + 1)}]}
    assert READER.items(method, page) == page[listed][:1]


def test_pages_are_read_until_there_is_no_cursor() -> None:
    conversation = Conversation({"tools": [{"name": "a"}], "nextCursor": "2"}, {"tools": [{"name": "b"}]})
    assert [item["name"] for item in read(conversation)] == ["a", "b"]
    assert conversation.asked == [{}, {"cursor": "2"}]


def test_an_error_ends_a_list_with_the_items_received_before() -> None:
    assert [item["name"] for item in read(Conversation({"tools": [{"name": "a"}], "nextCursor": "2"}, None))] == ["a"]


def test_a_list_without_end_is_not_read_to_its_end() -> None:
    page = {"tools": [{"name": f"t{number}"} for number in range(1_000)], "nextCursor": "again"}
    conversation = Conversation(*[page] * 10)
    assert len(read(conversation)) > MOST_TOOLS
    assert len(conversation.asked) == MOST_TOOLS // 1_000 + 1


def test_a_modern_server_gets_the_meta_of_the_gateway() -> None:
    conversation = Conversation({"tools": []}, era=Era.MODERN)
    read(conversation)
    assert conversation.asked == [{"_meta": GATEWAY_META}]


@pytest.mark.parametrize(
    ("annotations", "is_repeatable"),
    [({"readOnlyHint": True}, True), ({"idempotentHint": True}, True), ({"readOnlyHint": False}, False), (None, False)],
)
def test_the_annotations_of_a_tool_say_whether_its_calls_are_repeatable(
    annotations: dict[str, bool] | None, is_repeatable: bool
) -> None:
    conversation = cast("Any", Conversation({"tools": [{"name": "t", "annotations": annotations}]}))
    assert asyncio.run(READER.is_repeatable("t", conversation)) is is_repeatable


def test_calls_of_a_tool_that_is_not_listed_are_not_repeatable() -> None:
    assert asyncio.run(READER.is_repeatable("t", cast("Any", Conversation({"tools": []})))) is False
