"""`gateway.config.hosts.placeholders`: what each host's placeholders stand for."""

from pathlib import Path

import pytest

from gateway.config.hosts.placeholders import Place, Unresolved, expanded, in_braces, input_variable, variable
from tests.requirements import requirement

pytestmark = requirement("ops.placeholders")

PLACE = Place(
    environ={"HOME": "/home/a", "TOKEN": "t", "EMPTY": "", "INPUT_API_KEY": "k", "CHAIN": "${TOKEN}"},
    folder=Path("/home/a/project/.vscode"),
    inputs={"region": "eu"},
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("a ${TOKEN} b${TOKEN}", "a t bt"), ("${env:TOKEN}", "t"), ("[${EMPTY}]", "[]"), ("${CHAIN}", "${TOKEN}")),
        *(("${TOKEN:-x}", "t"), ("${UNSET:-x y}", "x y"), ("${EMPTY:-x}", "x"), ("${UNSET:-}", "")),
        *(("${env:UNSET:-x}", "x"), ("${input:api-key} ${input:region}", "k eu")),
        *(
            ("${workspaceFolder}/a", "/home/a/project/a"),
            ("${workspaceFolderBasename}${/}${userHome}", "project//home/a"),
        ),
        *(("$${TOKEN} costs $5", "${TOKEN} costs $5"), ("{env:TOKEN}", "{env:TOKEN}"), ("$TOKEN", "$TOKEN")),
    ],
)
def test_a_placeholder_is_replaced_once(text: str, value: str) -> None:
    assert expanded(text, PLACE) == value


def test_a_variable_without_braces_is_a_placeholder_as_the_last_word_of_a_value() -> None:
    assert expanded("$TOKEN", PLACE, last_word=True) == "t"
    assert expanded("Bearer $TOKEN", PLACE, last_word=True) == "Bearer t"
    for plain in ("pa$TOKEN", "$TOKEN x", "$5", "a$"):
        assert expanded(plain, PLACE, last_word=True) == plain
    assert in_braces("Bearer {env:TOKEN} ${env:TOKEN}", PLACE) == "Bearer t ${env:TOKEN}"
    assert variable("TOKEN", PLACE) == "t" and input_variable("github token") == "INPUT_GITHUB_TOKEN"


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (("${UNSET}", "${env:UNSET}"), "the variable UNSET is not set"),
        (("${input:github-token}",), "set the variable INPUT_GITHUB_TOKEN"),
        (("${workspaceFolder:api}", "${config:a.b}", "${1}", "${}", "${VAR-x}"), "has no meaning here"),
        (("${command:pick}",), r"write \$\${command:pick} for the text itself"),
        (("${MCP_GATEWAY_KEYS}", "${MCP_GATEWAY_KEYS:-x}"), "a setting of the gateway, which servers do not get"),
        (("${secret:github}", "${secret_file:github}"), "only be in env and headers, and its file only in env"),
    ],
)
def test_a_placeholder_without_a_value_is_an_error_that_says_what_to_do(texts: tuple[str, ...], what: str) -> None:
    for text in texts:
        with pytest.raises(Unresolved, match=what):
            expanded(text, PLACE)


@requirement("wall.secrets")
def test_secrets_stay_for_later_and_never_come_out_of_a_variable() -> None:
    place = Place(environ={"SLY": "${secret:github}", "SLIER": "x ${secret_file:github}"}, folder=Path())
    for text in ("Bearer ${secret:github}", "${secret_file:github}"):
        assert expanded(text, place, secrets=True) == text
    escaped = "$${secret:github} $${secret_file:github}"
    assert expanded(escaped, place, secrets=True) == escaped, "it becomes the text where others become secrets"
    assert expanded(escaped, place) == "${secret:github} ${secret_file:github}"
    for name in place.environ:
        with pytest.raises(Unresolved, match=f"the value of {name} contains"):
            expanded(f"${{{name}}}", place, secrets=True)
    for text in ("$MCP_GATEWAY_KEYS", "$UNSET"):
        with pytest.raises(Unresolved):
            expanded(text, place, last_word=True)
    for text in ("{env:MCP_GATEWAY_KEYS}", "{file:/etc/passwd}"):
        with pytest.raises(Unresolved):
            in_braces(text, place)
    assert "SLY" not in repr(place), "values stay out of tracebacks"
