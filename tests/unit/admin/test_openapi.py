"""Operations described in OpenAPI."""

from typing import Any

import msgspec

from gateway.admin.openapi import Operation, described
from tests.requirements import requirement


class Answer(msgspec.Struct):
    count: int


class Sent(msgspec.Struct):
    name: str


async def work(rest: Any, request: Any, operator: str) -> Answer:
    return Answer(1)


@requirement("ops.console")
def test_methods_of_one_path_stand_together_with_their_types() -> None:
    operations = [
        Operation(method="GET", path="/things/{id}", summary="Look", work=work, gives=Answer),
        Operation(
            method="POST",
            path="/things/{id}",
            summary="Change",
            work=work,
            gives=Answer,
            sends=Sent,
            takes=(("id", "path", "Which"), ("limit", "query", "How many")),
        ),
    ]
    found = described("/api", operations)
    assert found["openapi"] == "3.1.0" and found["paths"].keys() == {"/api/things/{id}"}
    ways = found["paths"]["/api/things/{id}"]
    assert ways.keys() == {"get", "post"} and "requestBody" not in ways["get"]
    assert ways["get"]["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Answer"
    }
    assert ways["post"]["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Sent"}
    assert [(p["name"], p["in"], p["required"]) for p in ways["post"]["parameters"]] == [
        ("id", "path", True),
        ("limit", "query", False),
    ]
    assert found["components"]["schemas"]["Answer"]["properties"] == {"count": {"type": "integer"}}
