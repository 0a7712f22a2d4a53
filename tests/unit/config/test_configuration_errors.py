"""`gateway.config.configuration_errors`: what was meant by an unknown name."""

import pytest

from gateway.config.configuration_errors import did_you_mean, similar_name

FIELDS = ("command", "args", "env", "url", "headers", "direct_only", "resource_uris")


@pytest.mark.parametrize(
    ("known", "names"),
    [
        ("args", ("arg", "ARGS", "arguments", "rags")),
        ("command", ("cmd", "comand")),
        ("direct_only", ("directOnly", "direct-onyl")),
        ("headers", ("header",)),
        ("resource_uris", ("resource_uri",)),
        ("", ("tags", "autoApprove", "timeout", "name", "", "__")),
    ],
)
def test_a_name_that_resembles_one_is_suggested(known: str, names: tuple[str, ...]) -> None:
    assert {name: similar_name(name, FIELDS) for name in names} == dict.fromkeys(names, known)
    suggestion = f"; did you mean {known}?" if known else ""
    assert {name: did_you_mean(name, FIELDS) for name in names} == dict.fromkeys(names, suggestion)
