"""Settings are validated when they are loaded, and an error names the field."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.policy import PolicySettings, RateSettings
from gateway.config.settings import ConfigurationError, Settings, load
from tests.requirements import requirement
from tests.support.credentials import KEYS, sha256
from tests.unit.config.conftest import Loading, Refusal

pytestmark = requirement("ops.config")

PUBLIC = {"host": "0.0.0.0", "advertise": "10.0.0.1:9000"}
JWT = {"issuer": "https://id.example", "audience": "a", "jwks_url": "https://id.example/jwks.json"}
CREDENTIALS: dict[str, dict[str, Any]] = {
    "api_keys": {"api_keys": {"alice": sha256(KEYS["alice"])}},
    "auth.jwt": {"auth": {"jwt": [JWT]}},
    "auth.proxies": {"auth": {"proxies": {"networks": ["10.0.0.0/8"], "subject_header": "X-User"}}},
}


@pytest.mark.parametrize(
    ("document", "where", "what"),
    [
        ({"mcpServers": {"a": {}}}, "mcpServers.a", "give one of command"),
        ({"mcpServers": {"a": {"in_process": "no module"}}}, "mcpServers.a.in_process", "module:attribute"),
        ({"mcpServers": {"a": {"command": "x", "in_process": "m:a"}}}, "mcpServers.a", "not several"),
        ({"mcpServers": {"a": {"url": "ftp://x.example/mcp"}}}, "mcpServers.a.url", "http:// or https://"),
        ({"mcpServers": {"a": {"url": "https://u:p@x.example/mcp"}}}, "mcpServers.a.url", "use headers"),
        ({"mcpServers": {"a__b": {"command": "x"}}}, "mcpServers.a__b", "server name"),
        ({"gateway": {"store": "mysql://x"}}, "gateway.store", "memory://"),
        ({"gateway": {"store": "redis:///0"}}, "gateway.store", "host"),
        ({"gateway": {"store": "sqlite://x.db"}}, "gateway.store", "path"),
        ({"gateway": {"session": {"metadata": {"a": "{nope}"}}}}, "gateway.session.metadata", "{principal}"),
        ({"gateway": {"session": {"metadata": {"a": "é " * 4_000}}}}, "gateway.session.metadata", "more than 10240"),
        ({"gateway": {"api_keys": {"a": "plain-key"}}}, "gateway.api_keys", "SHA-256"),
        ({"gateway": {"session": {"idle_ttl_s": 0}}}, "gateway.session.idle_ttl_s", "greater than 0"),
        ({"gateway": 7}, "gateway", "must be an object"),
    ],
)
def test_a_bad_configuration_fails_at_start_naming_the_field(
    document: Any, where: str, what: str, refusal: Refusal
) -> None:
    said = refusal(document)
    assert where in said and what in said
    assert "plain-key" not in said, "what was given may be a secret"


@requirement("wall.decoded")
@pytest.mark.parametrize("word", ["(?=a)b", r"(a)\1", "(", "a{2000}", "(?<!x)y"])
def test_an_expression_that_is_not_linear_is_a_configuration_error(word: str, refusal: Refusal) -> None:
    said = refusal({"mcpServers": {"s": {"command": "x", "tools": {"run": {"blocked": ["fine", word]}}}}})
    assert "mcpServers.s.tools.run.blocked" in said and "RE2" in said


@requirement("pol.operation")
@pytest.mark.parametrize(
    ("tools", "is_on", "words"),
    [
        ({"run": {"operation": "eval"}}, True, "mcpServers.s.tools.run: eval tools are on"),
        ({"run": {"operation": "eval"}, "other": {"blocked": ["x"]}}, True, "mcpServers.s.tools.run: eval tools are"),
        ({"run": {"operation": "eval"}, "r*": {"blocked": ["x"]}}, True, ""),
        ({"run": {"operation": "eval", "blocked": ["x"]}}, True, ""),
        ({"r[au]n": {"operation": "eval", "blocked": ["x"]}}, True, ""),
        ({"run": {"operation": "eval"}}, False, ""),
        ({}, True, "which enables nothing"),
    ],
)
def test_tools_that_evaluate_whatever_they_get_are_warned_of(
    tools: Any, is_on: bool, words: str, loading: Loading
) -> None:
    servers = {"s": {"command": "x", "tools": tools}}
    notes = loading({"mcpServers": servers}, {"policy": {"eval_tools": True}} if is_on else {}).notes
    assert [(note.level, words in note.line, "Expressions to start with" in note.do) for note in notes] == (
        [("warning", True, True)] if words else []
    )


@requirement("pol.operation")
def test_tools_of_a_server_that_is_left_out_are_not_missed(loading: Loading) -> None:
    good, faulty = {"command": "x"}, {"ur": 1, "tools": {"run": {"operation": "eval"}}}
    loaded = loading({"mcpServers": {"good": good, "faulty": faulty}}, {"policy": {"eval_tools": True}})
    assert loaded.settings.left_out and not loaded.notes


@requirement("wall.defaults", "spec.origin")
def test_who_serves_everybody_in_reach_says_by_which_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7", "mcp.example"):
        with pytest.raises(ConfigurationError, match=r"rebinding.*allowed_hosts = \[.*--allowed-host.*\[\"\*\"\]"):
            load(None, {**PUBLIC, "host": host, "anonymous": True})
    for names in (["mcp.example"], ["*"], ["*.example"]):
        assert load(None, {**PUBLIC, "anonymous": True, "allowed_hosts": names}).settings
    assert load(None, {**PUBLIC, "api_keys": {"a": "0" * 64}}).settings, "with credentials any name is fine"
    for host in ("127.0.0.1", "localhost", "::1"):
        assert load(None, {"host": host, "anonymous": True}).settings
    monkeypatch.setenv("MCP_GATEWAY_ALLOWED_HOSTS", '["MCP.example"]')
    assert load(None, {**PUBLIC, "anonymous": True}).settings.gateway.allowed_hosts == ("mcp.example",)


@requirement("wall.defaults")
@pytest.mark.parametrize(
    "name",
    ["", "https://mcp.example", "mcp.example:80", "mcp.example/mcp", "mcp.*.example", "*example", "**", "a b", "."],
)
def test_a_name_that_would_match_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a host name"):
        load(None, {"allowed_hosts": [name]})


@requirement("wall.defaults", "pol.auth")
@pytest.mark.parametrize("name", CREDENTIALS)
def test_anonymous_beside_a_credential_is_refused_wherever_they_came_from(
    name: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"gateway": {"anonymous": False, **CREDENTIALS[name]}}
    assert not Settings.model_validate(given).gateway.allows_anonymous
    said = refusal(given, {"anonymous": True})
    assert "the command line" in said and f"{name} (from mcp.json)" in said
    monkeypatch.setenv("MCP_GATEWAY_ANONYMOUS", "true")
    said = refusal(given)
    assert "the variable MCP_GATEWAY_ANONYMOUS" in said and f"{name} (from mcp.json)" in said
    with pytest.raises(ValueError, match=f"anonymous serves every caller, but {name} requires a credential"):
        Settings.model_validate({"gateway": {"anonymous": True, **CREDENTIALS[name]}})


@requirement("rep.takeover")
def test_no_gateway_is_advertised_where_each_reaches_itself() -> None:
    for address in ("0.0.0.0:9000", "[::]:9000"):
        with pytest.raises(ConfigurationError, match=r"advertise is .*:9000, where every gateway reaches itself"):
            load(None, {"advertise": address})
        assert load(None, {"advertise": "10.0.0.1:9000", "internal": address}).settings


@requirement("pol.auth")
def test_nobody_is_served_by_accident() -> None:
    with pytest.raises(ConfigurationError, match="callers need no credential: set api_keys or auth"):
        load(None, PUBLIC)
    nameless = {"auth": {"proxies": {"networks": ["10.0.0.0/8"]}}}
    assert load(None, {"anonymous": True, **nameless}).settings.gateway.allows_anonymous, "it names nobody"
    for jwks_url in ("http://id.example/jwks.json", "ftp://id.example"):
        with pytest.raises(ConfigurationError, match="https://"):
            load(None, {"auth": {"jwt": [JWT | {"jwks_url": jwks_url}]}})


@requirement("wall.authority")
def test_headers_of_proxies_make_sense(refusal: Refusal) -> None:
    for headers, words in (
        ({"permissions_header": "X-May"}, "subject_header is missing"),
        ({"subject_header": "X User"}, "not a header name"),
        ({"subject_header": "X-User", "permissions_header": "x-user"}, "name the same header"),
    ):
        assert words in refusal({"gateway": {"auth": {"proxies": {"networks": ["10.0.0.0/8"], **headers}}}})


@requirement("wall.authority", "hot.memory")
def test_a_header_that_differs_between_like_requests_says_nothing_of_a_client(refusal: Refusal) -> None:
    """The memory of heads takes requests that differ in these alone for alike."""
    for name in ("traceparent", "Content-Length"):
        for gateway in (
            {"auth": {"proxies": {"networks": ["10.0.0.0/8"], "subject_header": name}}},
            {"context": {"fields": {"trace": {"header": name}}}},
            {"session": {"key_headers": [name]}},
        ):
            said = refusal({"gateway": gateway})
            assert f"{name} is different in each request" in said


@requirement("ext.relay")
def test_a_method_of_mcp_is_none_beyond_it(refusal: Refusal) -> None:
    for method, setting in (
        ("tools/call", "methods by tools"),
        ("resources/read", "methods by resource_uris"),
        ("ping", "methods by tools, prompts and resource_uris"),
    ):
        said = refusal({"mcpServers": {"demo": {"command": "demo", "methods": {method: {"allowed": False}}}}})
        assert f"'{method}' is MCP's" in said and setting in said
    assert Settings.model_validate({"mcpServers": {"demo": {"command": "demo", "methods": {"vendor/*": {}, "*": {}}}}})


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("policy.check_arguments", "strict", "must be lenient, true or false"),
        ("tasks.at_once", "a/*", 'must be a JSON list, for example ["a", "b"]'),
        ("api_keys", "{alice:x}", 'must be a JSON object, for example {"name": "value"}'),
        ("session", "x", 'must be a JSON object, for example {"name": "value"}'),
        ("tasks.ttl_s", "1h", "must be a number of seconds"),
    ],
)
def test_a_value_of_another_kind_is_told_in_words_of_the_configuration(
    setting: str, value: str, words: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"MCP_GATEWAY_{setting.upper().replace('.', '__')}"
    monkeypatch.setenv(variable, value)
    assert refusal({}) == f"the variable {variable}: gateway.{setting}: {words}"


def test_a_list_in_a_file_and_a_null_in_a_variable(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal({"gateway": {"tasks": {"at_once": "a/*"}}})
    assert said == "mcp.json: gateway.tasks.at_once: must be a list"
    monkeypatch.setenv("MCP_GATEWAY_LIMITS__TOTAL_MEMORY_MB", "null")
    assert load(None).settings.gateway.limits.total_memory_mb is None
    monkeypatch.setenv("MCP_GATEWAY_POLICY__CHECK_ARGUMENTS", "false")
    assert load(None).settings.gateway.policy.check_arguments is False


@requirement("wall.bystander")
def test_limits_have_defaults_and_are_switched_off_by_0() -> None:
    policy = Settings().gateway.policy
    names = ("session_rate", "principal_rate", "principal_sessions", "principal_processes")
    assert None not in {getattr(policy, name) for name in names}
    off = PolicySettings.model_validate(dict.fromkeys(names, 0))
    assert {getattr(off, name) for name in names} == {None}


def test_the_burst_of_a_rate_follows_from_it() -> None:
    bursts = [
        RateSettings.model_validate(rate).at_once
        for rate in ({"per_s": 0.5}, {"per_s": 99.5}, {"per_s": 9, "burst": 3})
    ]
    assert bursts == [20, 100, 3]


@requirement("pol.limits")
@pytest.mark.parametrize(
    ("more", "limits"),
    [
        ({}, set()),
        ({"policy": {"read_only": ["direct"]}, "store": "redis://localhost/0", "anonymous": True}, set()),
        ({"store": "sqlite:////tmp/sessions.db", "host": "::1"}, set()),
        ({"policy": {"session_rate": {"per_s": 500}}}, {"session_rate"}),
        ({"policy": {"principal_rate": {"per_s": 500}}}, {"principal_rate"}),
        *(
            (others, {"session_rate", "principal_rate"})
            for others in (
                {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": ["*"]},
                CREDENTIALS["api_keys"],
                CREDENTIALS["auth.jwt"],
                {"auth": {"proxies": {"networks": ["10.0.0.0/8"]}}},
                {"allowed_hosts": ["tunnel.example"]},
                {"store": "redis://10.0.0.3/0"},
                {"advertise": "10.0.0.1:9000"},
            )
        ),
    ],
)
def test_calls_are_limited_unless_the_gateway_is_nobody_elses(more: dict[str, Any], limits: set[str]) -> None:
    settings = Settings.model_validate({"gateway": more}).gateway
    applied = settings.rated_policy
    assert {name for name in ("session_rate", "principal_rate") if getattr(applied, name) is not None} == limits
    assert applied.principal_sessions is not None and settings.policy.session_rate is not None


@requirement("wall.secrets")
def test_the_store_comes_from_a_file_or_from_a_setting_and_not_from_both(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load().settings.gateway.store == "memory://", "if nobody says anything"
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("redis://:hush@127.0.0.1:6379/0\n", encoding="utf-8")
    monkeypatch.setenv("MCP_GATEWAY_STORE_FILE", str(secret))
    assert load().settings.gateway.store == "redis://:hush@127.0.0.1:6379/0"
    said = refusal({}, {"store": "memory://"})
    assert "--store on the command line" in said and "MCP_GATEWAY_STORE_FILE" in said and "hush" not in said
