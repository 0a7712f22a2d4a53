"""The file with what is approved: it is read as it was written, and nothing else is read as a lock."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_difference import difference, digest
from gateway.config.settings import ConfigurationError, Settings, load
from gateway.config.tools_lock import document, read_lock
from gateway.policy.access_policy import Policy
from gateway.protocol.item_digests import digest_of
from gateway.protocol.merged_lists import Tools
from session_store import Context
from tests.requirements import requirement

pytestmark = requirement("live.tools-lock")

TOOL: dict[str, Any] = {"name": "read", "description": "Read."}
ITEMS: dict[str, Any] = {"one": {"tools": {"read": TOOL}, "prompts": {"p": {"name": "p"}}}, "open": None}
ANYBODY = Context(trust="direct")


def written(folder: Path, servers: Any = None) -> Path:
    file = folder / "tools.lock"
    file.write_text(json.dumps(document(ITEMS if servers is None else servers)), encoding="utf-8")
    return file


def loaded(folder: Path, lock: str = "tools.lock") -> Settings:
    file = folder / "mcp.json"
    servers = {name: {"command": "x"} for name in ("one", "open", "new")}
    file.write_text(json.dumps({"mcpServers": servers, "gateway": {"policy": {"lock": lock}}}), encoding="utf-8")
    return load(file).settings


def test_a_lock_says_why_an_item_is_absent(tmp_path: Path) -> None:
    lock = read_lock(written(tmp_path))
    assert lock.item("one", "tools", "read") == TOOL and lock.item("open", "tools", "read") is None
    same, other = digest_of(TOOL), digest_of(TOOL | {"description": "Send."})
    assert lock.why_absent("one", "tools", "read", same) == lock.why_absent("open", "tools", "any", "") == ""
    assert "has changed" in lock.why_absent("one", "tools", "read", other)
    assert "not in the lock" in lock.why_absent("one", "prompts", "read", same), "a prompt is no tool"
    assert "its server is not in the lock" in lock.why_absent("new", "tools", "read", same)
    assert "more than one form" in lock.why_absent("one", "tools", "read", "")
    assert "does not list it" in lock.why_absent("one", "tools", "", "")


@pytest.mark.parametrize(
    "broken",
    [
        *("not JSON", "[]", "{}", '{"version": 2, "servers": {}}', '{"version": 1, "servers": []}'),
        *('{"version": 1, "servers": {"a": 1}}', '{"version": 1, "servers": {"a": {"tools": {"t": {}}}}}'),
        *('{"version": 1, "servers": {"a": {"tool": {}}}}', '{"version": 1, "servers": {}, "servers": {}}'),
        json.dumps(document(ITEMS)).replace("Read.", "Send."),
        json.dumps({"version": 1, "servers": {"a": {"tools": {"t": {"digest": "", "item": {"x": float("nan")}}}}}}),
    ],
)
def test_a_faulty_lock_refuses_the_configuration(tmp_path: Path, broken: str) -> None:
    written(tmp_path).write_text(broken, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"tools\.lock is no lock"):
        loaded(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        loaded(tmp_path, "none.lock")
    with pytest.raises(ConfigurationError, match="must be the path of a file"):
        loaded(tmp_path, "")


def test_only_approved_tools_exist(tmp_path: Path) -> None:
    written(tmp_path)
    settings = loaded(tmp_path)
    policy = Policy(settings.gateway.policy, settings.mcpServers)
    assert [policy.locks(name) for name in ("one", "open", "new")] == [True, False, True]
    assert policy.restricts("one") == {"tools", "prompts", "resources"} and not policy.restricts("open")
    listed = Tools([TOOL, {"name": "send"}])
    reasons = {name: policy.decide_listed(ANYBODY, "one", listed, name).reason for name in ("read", "send", "gone")}
    assert reasons["read"] == "" and "not in the lock" in reasons["send"] and "does not list" in reasons["gone"]
    assert not policy.decide(ANYBODY, "one", "read").allowed, "who does not say what is listed gets nothing"
    assert not policy.decide_listed(ANYBODY, "new", listed, "read").allowed
    assert policy.decide_listed(ANYBODY, "open", listed, "send").allowed
    assert policy.decide_approved(ANYBODY, "one", "read", "write").allowed
    assert not policy.decide_approved(ANYBODY, "one", "send", "write").allowed


def test_a_reload_applies_what_a_lock_says_and_not_whether_there_is_one(tmp_path: Path) -> None:
    written(tmp_path)
    old = loaded(tmp_path)
    assert difference(old, loaded(tmp_path)).is_empty
    written(tmp_path, {"one": None})
    new = loaded(tmp_path)
    assert difference(old, new).settings == ("gateway.policy.lock.content",)
    assert digest(old) != digest(new), "replicas tell the older one by it"
    without = new.gateway.model_copy(update={"policy": new.gateway.policy.model_copy(update={"lock": None})})
    assert difference(old, new.model_copy(update={"gateway": without})).restart == ("gateway.policy.lock",)
