"""What a client announces, and what the operator makes of it."""

from typing import Any

import msgspec
import pytest

from gateway.config.sessions import ContextSettings
from gateway.context.announced_context import Announced, Announcements, MetaPath
from session_store import Context, Provenance
from tests.requirements import requirement
from transports.era import Era
from transports.inbound_port import Refused, Request


def announcing(**settings: Any) -> Announcements:
    def session_key(request: Request) -> str | None:
        return request.headers.get("key")

    return Announcements("orbit.workspace", ContextSettings.model_validate(settings), session_key)


@requirement("wall.provenance")
def test_servers_get_no_announced_workspace_that_is_not_the_contexts() -> None:
    def left(context: Context, **meta: Any) -> Any:
        raw = {name.replace("_", "."): msgspec.Raw(msgspec.json.encode(value)) for name, value in meta.items()}
        found = announcing(workspace_ids={"/srv/*": "{name}"}).agreed(raw, context)
        return {name: msgspec.json.decode(value) for name, value in found.items()}

    blue = Context(workspace="blue", provenance=Provenance(workspace="configured"))
    assert left(blue, orbit={"workspace": "red", "view": 1}, orbit_workspace="red") == {"orbit": {"view": 1}}
    assert left(blue, orbit_workspace=["blue"], orbit={"workspace": "x" * 5_000}) == {"orbit": {}}
    for same in ({"workspace": "blue"}, {"workspace": "/srv/blue"}, {"workspace": ""}, "red", None):
        assert left(blue, orbit=same, other="red") == {"orbit": same, "other": "red"}
    none = Context(provenance=Provenance(workspace="authenticated"))
    assert left(none, orbit_workspace="red") == {}, "the credential says that there is none"
    assert left(Context(), orbit_workspace="red") == {"orbit.workspace": "red"}, "nothing says otherwise"


@requirement("ctx.announce")
@pytest.mark.parametrize(
    ("meta", "workspace"),
    [
        ({"orbit": {"workspace": "red"}}, "red"),
        ({"orbit.workspace": "red"}, "red"),
        ({"orbit.workspace": "red", "orbit": {"workspace": "blue"}}, "blue"),
        ({"orbit.workspace": "red", "orbit": {"workspace": ""}}, "red"),
        ({"orbit.workspace": "red", "orbit": "blue"}, "red"),
        *((meta, "") for meta in ({"orbit": {"workspace": ""}}, {"orbit": "red"}, {})),
    ],
)
def test_a_workspace_is_announced_nested_or_dotted_and_the_nested_one_wins(meta: Any, workspace: str) -> None:
    assert announcing().workspace(meta) == workspace


@requirement("ctx.announce", "wall.provenance")
def test_nothing_is_announced_without_a_path() -> None:
    meta = {"": "red", "orbit": {"workspace": "red"}, "orbit.workspace": "red"}
    assert Announcements("", ContextSettings(), lambda _: None).workspace(meta) == ""


@requirement("ctx.announce")
@pytest.mark.parametrize("value", [7, ["red"], {"a": 1}, True])
def test_a_workspace_that_is_no_text_is_refused_by_its_path(value: Any) -> None:
    for meta in ({"orbit": {"workspace": value}}, {"orbit.workspace": value}):
        with pytest.raises(Refused, match=r"orbit\.workspace"):
            announcing().workspace(meta)


@requirement("ctx.workspace-paths")
def test_a_path_becomes_the_workspace_that_the_first_matching_pattern_names() -> None:
    ids = {"/srv/projects/alpha*": "alpha", "/srv/projects/*": "project-{name}", "C:*": "{name}"}
    found, long = announcing(workspace_ids=ids), "/" + "x" * 4_095
    for path, workspace in (
        ("/srv/projects/alpha/src", "alpha"),
        ("/srv/projects/beta", "project-beta"),
        ("/srv/projects/beta/", "project-beta"),
        ("C:\\code\\gamma", "gamma"),
        ("/home/ann", "/home/ann"),  # no pattern is for it
        (long, long),
    ):
        assert found.workspace({"orbit": {"workspace": path}}) == workspace
    with pytest.raises(Refused, match="longer than 4096"):
        found.workspace({"orbit": {"workspace": long + "x"}})


@requirement("ctx.open")
def test_clients_announce_fields_in_meta_and_in_headers_that_are_theirs() -> None:
    fields = {
        "project": {"announced": "acme.project"},
        "window": {"header": "X-Window", "client_header": True},
        "team": {"header": "X-Team"},
        "tier": {"value": "gold"},
    }
    found = announcing(fields=fields)

    def of(meta: Any, **headers: str) -> Announced:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return found.of(Request(era=Era.MODERN, endpoint="/mcp", headers=given, meta=meta))

    meta = {"acme": {"project": "p1"}, "orbit.workspace": "w", "tier": "forged", "team": "forged"}
    announced = of(meta, x_window="7", x_team="forged", x_tier="forged")
    assert announced == Announced("w", (("project", "p1"), ("window", "7"))) and of({}) == Announced()
    with pytest.raises(Refused, match="UTF-8"):
        of({}, x_window="\xff")
    with pytest.raises(Refused, match=r"acme\.project"):
        of({"acme": {"project": 1}})


@requirement("ctx.open")
def test_a_session_key_is_a_field_of_principals_and_never_of_anonymous_clients() -> None:
    found = announcing(fields={"conversation": {"session_key": True}})
    request, keyless = (Request(era=Era.MODERN, endpoint="/mcp", headers=each) for each in ({"key": "c-1"}, {}))
    assert found.of(request).fields == (("conversation", "c-1"),)
    assert found.of(request, is_anonymous=True).fields == found.of(keyless).fields == ()


def test_a_path_is_looked_up_where_its_first_part_is() -> None:
    assert MetaPath("a").text({"a": "x"}) == "x"
    assert MetaPath("a.b.c").text({"a": {"b": {"c": "x"}}}) == MetaPath("a.b.c").text({"a.b.c": "x"}) == "x"
