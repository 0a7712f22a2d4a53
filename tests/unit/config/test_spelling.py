"""`gateway.config.spelling`: what was meant by an unknown name."""

import pytest

from gateway.config.spelling import did_you_mean, meant

FIELDS = ("command", "args", "env", "url", "headers", "direct_only", "resource_uris")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("arg", "args"),
        ("ARGS", "args"),
        ("arguments", "args"),
        ("cmd", "command"),
        ("comand", "command"),
        ("directOnly", "direct_only"),
        ("direct-onyl", "direct_only"),
        ("header", "headers"),
        ("rags", "args"),
        ("resource_uri", "resource_uris"),
    ],
)
def test_a_name_that_resembles_one_is_suggested(name: str, known: str) -> None:
    assert meant(name, FIELDS) == known
    assert did_you_mean(name, FIELDS) == f"; did you mean {known}?"


@pytest.mark.parametrize("name", ["tags", "autoApprove", "timeout", "name", "", "__"])
def test_other_names_are_not(name: str) -> None:
    assert meant(name, FIELDS) == "" and did_you_mean(name, FIELDS) == ""
