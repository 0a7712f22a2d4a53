"""The skill of a URI, the server in a URI, and the URIs of results."""

from typing import Any

import pytest

from gateway.protocol.skill_uris import distinct, named_uri, origin_of, skill_fit, with_uris
from tests.requirements import requirement

pytestmark = requirement("spec.skills")

OUTER, INNER = "skill://acme/billing/SKILL.md", "skill://acme/billing/refunds/SKILL.md"


def test_what_is_in_no_skill_fits_none() -> None:
    for uri in ("skill://acme/billing-two/SKILL.md", "skill://other", "other://acme/billing/SKILL.md", ""):
        assert skill_fit(uri, [OUTER, INNER]) == 0


@pytest.mark.parametrize(
    ("uri", "better", "worse"),
    [
        ("skill://acme/billing/refunds/examples/a.md", INNER, OUTER),
        ("skill://acme/billing/refunds", INNER, OUTER),
        ("skill://acme/billing/a.md", OUTER, INNER),
        ("skill://acme", OUTER, "skill://acme-two/SKILL.md"),
        ("skill://acme/billing/refunds-two/SKILL.md", OUTER, INNER),
    ],
)
def test_a_file_belongs_to_the_innermost_skill_around_it(uri: str, better: str, worse: str) -> None:
    assert skill_fit(uri, [worse, better]) == skill_fit(uri, [better]) > skill_fit(uri, [worse])


@pytest.mark.parametrize("uri", [OUTER, "skill://a/SKILL.md", "file:///a/SKILL.md", "github://o/r__/a/SKILL.md"])
def test_a_uri_with_its_server_leads_back_to_both(uri: str) -> None:
    for server in ("b", "b_c.d-1", "b_"):
        assert origin_of(named_uri(server, uri)) == (server, uri)
    assert named_uri("b", uri).split("/")[-2:] == uri.split("/")[-2:] or uri.count("/") == 3
    assert origin_of(uri)[0] == ""
    assert named_uri("b", "urn:a") == "" and origin_of("urn:a__/b") == ("", "urn:a__/b")


def entry(uri: str, *files: Any) -> dict[str, Any]:
    return {"uri": uri, "frontmatter": {"name": "x", "uri": "kept", "resources": [1]}, "resources": [*files]}


def test_uris_are_converted_where_results_have_them_and_nowhere_else() -> None:
    def convert(uri: str) -> str:
        return "" if uri.startswith("hidden") else f"{uri}!"

    file = {"uri": "a", "digest": "d"}
    shown = entry("a!", {"uri": "a!", "digest": "d"})
    listed = [entry("a", file, {"uri": "hidden"}, {}, 7), entry("hidden"), "x", None]
    assert with_uris({"skills": listed, "uri": "a", "ttlMs": 1}, convert) == {"skills": [shown], "uri": "a", "ttlMs": 1}
    assert with_uris({"skill": entry("a", file)}, convert) == {"skill": shown}
    assert with_uris({"skill": entry("hidden")}, convert) == {"skill": {}}
    dynamic = {"uri": "a", "resources": "dynamic"}
    assert with_uris({"skill": dynamic}, convert)["skill"] == dynamic | {"uri": "a!"}
    assert with_uris({"contents": [{"uri": "a", "text": "t"}]}, convert) == {"contents": [{"uri": "a!", "text": "t"}]}


def test_a_skill_whose_uri_is_taken_gets_its_server() -> None:
    one, two = entry("skill://a/SKILL.md", {"uri": "skill://a/x.md"}), entry("skill://b/SKILL.md")
    named = entry("skill://s__/a/SKILL.md", {"uri": "skill://s__/a/x.md"})
    assert distinct("s", [one, two], {"skill://a/SKILL.md"}) == [named, two]
    assert distinct("s", [entry("urn:a")], {"urn:a"}) == [], "there is no place for the server"
