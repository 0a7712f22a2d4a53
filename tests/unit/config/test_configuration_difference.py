"""The difference of two configurations: servers, settings that a reload applies, and those that need a restart."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_difference import KEPT, applied, difference, digest
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings import Settings
from tests.requirements import requirement
from tests.support.credentials import sha256

pytestmark = requirement("live.reload")

ONE: Any = {"command": "one"}
KEYS: Any = {"api_keys": {"ann": sha256("ann")}}


def settings(servers: Any = None, **options: Any) -> Settings:
    return Settings.model_validate({"mcpServers": {"one": ONE} if servers is None else servers, "gateway": options})


def test_servers_are_added_removed_and_changed() -> None:
    old = settings({"one": ONE, "two": ONE, "three": ONE})
    new = settings({"four": ONE, "one": ONE, "two": {"command": "one", "args": ["x"]}})
    found = difference(old, new)
    assert (found.added, found.removed, found.changed) == (("four",), ("three",), ("two",))
    assert found.text == "servers added: four; servers removed: three; servers changed: two"
    assert difference(new, settings({"one": ONE, "two": new.mcpServers["two"], "four": ONE})).is_empty, "their order"


def in_file(path: Path, document: Any) -> Settings:
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return Settings.load(path)


def test_replicas_compare_what_a_reload_applies_of_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(options: Any, servers: Any = None, name: str = "mcp.json") -> str:
        return digest(in_file(tmp_path / name, {"mcpServers": servers or {"one": ONE}, "gateway": options}))

    monkeypatch.setenv("A", "1")
    slow, entry = {"policy": {"slow_s": 3}}, {"one": ONE | {"env": {"A": "${A}"}}}
    known = of(slow, entry)
    monkeypatch.setenv("A", "2")
    assert of(slow | {"port": 1, "limits": {"body_bytes": 2_048}}, entry, "other.json") == known
    assert of({"policy": {"slow_s": 3, "trust_announced_workspace": True}}, entry) == known, "it needs a restart"
    others = [of(slow), of({"policy": {"slow_s": 4}}, entry), of(slow | {"limits": {"exchanges": 3}}, entry)]
    assert len({known, *others}) == 4
    assert digest(settings()) == ""
    assert digest(in_file(tmp_path / "half.json", '{"mcpServers": {"one": {"command": "\\ud83d"}}}'))


@pytest.mark.parametrize("kind", ["secret", "secret_file"])
def test_a_server_changes_with_a_secret_that_it_names(kind: str) -> None:
    entry = {"command": "one", "env": {"TOKEN": f"x-${{{kind}:token}}"}}
    old, new = (
        settings({"one": entry, "two": ONE}, secrets={"token": {"env": name}, "other": {"env": name}}) for name in "AB"
    )
    found = difference(old, new)
    assert found.changed == ("one",) and found.settings == ("gateway.secrets",)


def test_what_needs_a_restart_is_named_and_keeps_its_value() -> None:
    old = settings(port=1, limits={"exchanges": 1, "body_bytes": 4_096}, admin={"keys": {"a": sha256("a")}})
    new = settings(
        port=2,
        limits={"exchanges": 2, "body_bytes": 8_192},
        admin={"keys": {"a": sha256("b")}, "listen": "127.0.0.1:9"},
        policy={"slow_s": 1, "trust_announced_workspace": True},
        log_level="debug",
    )
    found = difference(old, new)
    assert found.settings == ("gateway.admin.keys", "gateway.policy.slow_s", "gateway.limits.exchanges")
    assert found.restart == (
        "gateway.port",
        "gateway.log_level",
        "gateway.admin.listen",
        "gateway.policy.trust_announced_workspace",
        "gateway.limits.body_bytes",
    )
    made = applied(old, new).gateway
    assert (made.port, made.log_level, made.admin.listen) == (1, "info", "")
    assert (made.limits.exchanges, made.limits.body_bytes) == (2, 4_096)
    assert (made.policy.slow_s, made.policy.trust_announced_workspace) == (1, False)
    assert made.admin.keys == {"a": (sha256("b"),)}
    left = difference(old, applied(old, new))
    assert left.settings == found.settings and left.restart == ()


def test_the_first_operators_key_needs_a_restart_where_there_is_no_console() -> None:
    old, new = settings(), settings(admin={"keys": {"a": sha256("a")}}, limits={"exchanges": 1})
    restart = KEPT | {"admin.keys"}
    found = difference(old, new, restart)
    assert (found.settings, found.restart) == (("gateway.limits.exchanges",), ("gateway.admin.keys",))
    made = applied(old, new, restart)
    assert not made.gateway.admin.keys and difference(made, new, restart).restart == found.restart, "it is told again"


@pytest.mark.parametrize(("before", "after"), [({}, KEYS), (KEYS, {})])
def test_a_reload_never_decides_whether_callers_need_a_credential(before: Any, after: Any) -> None:
    with pytest.raises(ConfigurationError, match="whether callers need a credential"):
        applied(settings(**before), settings(**after))


def test_the_mixture_is_validated_whole() -> None:
    old = settings({"one": ONE, "two": ONE}, public_url="https://a.example")
    cards = {"two": {"name": "com.example/two", "description": "two"}}
    with_card = settings({"one": ONE, "two": ONE}, public_url="https://a.example", cards=cards)
    assert applied(old, with_card).gateway.cards == old.gateway.cards
    with pytest.raises(ConfigurationError, match=r"there is no server 'two'(.|\n)*need a restart"):
        applied(with_card, settings({"one": ONE}, public_url="https://a.example"))


def test_an_entry_that_has_become_faulty_refuses_the_reload() -> None:
    new, before = settings({"one": ONE, "two": ONE}), settings({"one": ONE, "two": ONE})
    faulty = new.mcpServers["two"].without_server("mcpServers.two: no such setting")
    broken = new.model_copy(update={"mcpServers": {**new.mcpServers, "two": faulty}})
    with pytest.raises(ConfigurationError, match=r"mcpServers\.two: no such setting"):
        applied(before, broken)
    assert applied(broken, broken).left_out.keys() == {"two"}, "it was left out before"


def test_no_value_is_told() -> None:
    secret = {"command": "one", "env": {"TOKEN": "hunter2"}}
    found = difference(settings(), settings({"one": secret}, public_url="hunter2", policy={"read_only": ["direct"]}))
    assert "hunter2" not in found.text and "gateway.public_url" in found.text
