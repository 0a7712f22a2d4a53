"""`gateway.admin.verbs`: parameters of requests, there and back, and the description in OpenAPI."""

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.operators import OperatorError, PastQuery, SessionFilter, SessionQuery, TaskQuery
from gateway.admin.verbs import VERBS, Verb, described
from tests.requirements import requirement

BY_NAME = {one.name: one for one in VERBS}


def read(verb: Verb, given: dict[str, str]) -> dict[str, Any]:
    return {one.at: one.read(given) for one in verb.takes}


@requirement("ops.console")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sessions", {"query": SessionQuery()}),
        (
            "sessions",
            {
                "query": SessionQuery(
                    query="a b",
                    only="busy",
                    which=SessionFilter(client="agent", failing=True),
                    sort="used",
                    limit=7,
                    after="1.5~abc",
                )
            },
        ),
        ("end_all", {"which": SessionFilter(principal="api-key:ann")}),
        ("past_sessions", {"query": PastQuery(query="x", client="agent")}),
        ("tasks", {"query": TaskQuery(status="working", limit=2)}),
        ("usage", {"by": "client", "over": "6h"}),
        ("history", {"over": "15m", "server": "files", "tool": ""}),
        ("events", {"limit": 10_000, "session": "abcdefgh"}),
        ("stderr", {"prefix": "abcd", "after": 12_000, "limit": 500}),
        ("drain", {"prefix": "abc"}),
    ],
)
def test_arguments_come_back_from_the_parameters_of_a_request(name: str, arguments: dict[str, Any]) -> None:
    verb = BY_NAME[name]
    sent: dict[str, str] = {}
    for one in verb.takes:
        sent |= one.written(arguments[one.at])
    assert read(verb, sent) == arguments and all(sent.values())


@requirement("ops.console")
@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("sessions", {"limit": "0"}, "limit: must be a number from 1 to 1000"),
        ("sessions", {"limit": "1001"}, "limit: must be a number from 1 to 1000"),
        ("sessions", {"limit": "٣"}, "limit: must be a number from 1 to 1000"),
        ("sessions", {"only": "good"}, "only: must be one of all, failing, busy"),
        ("sessions", {"sort": "age"}, "sort: must be one of id, used, created"),
        ("sessions", {"principal": ""}, "principal: is empty"),
        ("sessions", {"failing": "no"}, "failing: must be true"),
        ("end_all", {}, "name the sessions"),
        ("history", {"range": "2h"}, "range: must be one of 5m, 15m"),
        ("frames", {"session": "abcd", "after": "x"}, "after: must be a number, `after` of the page before"),
        ("frames", {"session": "abcd", "after": "9" * 30}, "after: must be a number, `after` of the page before"),
    ],
)
def test_a_wrong_parameter_is_answered_with_what_is_right(name: str, given: dict[str, str], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        read(BY_NAME[name], given)


@requirement("ops.console")
def test_verbs_of_one_path_are_described_together_with_their_types() -> None:
    found = described("/api", VERBS)
    ways = found["paths"]["/api/sessions/{session}"]
    assert found["openapi"] == "3.1.0" and ways.keys() == {"get", "delete"} and "requestBody" not in ways["get"]
    body = found["paths"]["/api/calls"]["post"]["requestBody"]
    schemas = [one["content"]["application/json"]["schema"] for one in (ways["get"]["responses"]["200"], body)]
    assert schemas == [{"$ref": "#/components/schemas/SessionRow"}, {"$ref": "#/components/schemas/Attempt"}]
    ended = ways["delete"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert ended == {"type": "object", "additionalProperties": {"type": "string"}}
    frames = found["paths"]["/api/sessions/{session}/frames"]["get"]["parameters"]
    told = [(one["name"], one["in"], one["required"], one["schema"]["type"]) for one in frames]
    expected = [("session", "path", True), ("after", "query", False)]
    assert told == [*((*one, "string") for one in expected), ("limit", "query", False, "integer")]
    assert all(one.summary and one.method in ("GET", "PUT", "POST", "DELETE") for one in VERBS)


def test_each_verb_has_a_place_of_its_own() -> None:
    assert len({(one.method, one.path) for one in VERBS}) == len({one.name for one in VERBS}) == len(VERBS)


ELSEWHERE = {"frames", "stderr", "tools"}
"""The page of a session reads messages and lines at once (`SessionWatches.both`). `tools` is `usage` of tools, for
scripts."""


def test_each_verb_is_on_a_page_or_a_command() -> None:
    folders = (Path(__file__).parents[3] / "gateway" / name for name in ("admin/pages", "cli"))
    text = "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.py"))
    unseen = {one.name for one in VERBS if not re.search(rf"\b(operators|tried|source)\.{one.name}\(", text)}
    assert unseen == ELSEWHERE
