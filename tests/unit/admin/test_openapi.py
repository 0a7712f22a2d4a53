"""Operations described in OpenAPI."""

from dataclasses import replace
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
    look = Operation(method="GET", path="/things/{id}", summary="Look", work=work, gives=Answer)
    takes = (("id", "path", "Which"), ("limit", "query", "How many"))
    change = replace(look, method="POST", summary="Change", sends=Sent, takes=takes)
    found = described("/api", [look, change])
    assert found["openapi"] == "3.1.0" and found["paths"].keys() == {"/api/things/{id}"}
    ways = found["paths"]["/api/things/{id}"]
    assert ways.keys() == {"get", "post"} and "requestBody" not in ways["get"]
    answer, body = ways["get"]["responses"]["200"], ways["post"]["requestBody"]
    schemas = [one["content"]["application/json"]["schema"] for one in (answer, body)]
    assert schemas == [{"$ref": "#/components/schemas/Answer"}, {"$ref": "#/components/schemas/Sent"}]
    parameters = [(one["name"], one["in"], one["required"]) for one in ways["post"]["parameters"]]
    assert parameters == [("id", "path", True), ("limit", "query", False)]
    assert found["components"]["schemas"]["Answer"]["properties"] == {"count": {"type": "integer"}}
