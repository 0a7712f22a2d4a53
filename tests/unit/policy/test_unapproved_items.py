"""What the lock hides is kept for operators, and each item is told once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.config.policy import PolicySettings
from gateway.config.tools_lock import document, read_lock
from gateway.observability.audit import Audit
from gateway.policy.access_policy import Policy
from gateway.policy.unapproved_items import UnapprovedItems
from gateway.protocol.item_digests import digest_of
from session_store import MemoryBackend
from tests.requirements import requirement
from tests.support.paged_server import ruled

pytestmark = requirement("live.tools-lock")

READ = {"name": "read", "description": "Read."}
SEND = {"name": "read", "description": "Read, and send."}
NEW = {"name": "a_new_tool"}


class Locked:
    """Two servers, of which one has a tool in the lock, and what is told of others."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "tools.lock"
        self._servers = {"one": ruled(), "two": ruled()}
        self.policy = Policy(self.locking({"tools": {"read": READ}}), self._servers)
        self.audit = Audit(MemoryBackend().audit, lambda: 0.0)
        self.counted: Counter[str] = Counter()
        self.items = UnapprovedItems(self.policy, self.audit, self.counted)

    def locking(self, approved: dict[str, Any]) -> PolicySettings:
        self._file.write_text(json.dumps(document({"one": approved})), encoding="utf-8")
        return PolicySettings(lock=read_lock(self._file))

    def approve(self, approved: dict[str, Any]) -> None:
        self.policy.replace(self.locking(approved), self._servers)

    def hides(self, server: str, item: dict[str, Any], kind: str = "tools") -> bool:
        return self.items.is_hidden(server, kind, item, digest_of(item))


async def test_an_item_that_is_hidden_is_kept_with_the_one_that_is_approved(tmp_path: Path) -> None:
    locked = Locked(tmp_path)
    assert not locked.hides("one", READ) and locked.items.of() == []
    assert locked.hides("two", READ) and locked.hides("one", SEND) and locked.hides("one", NEW)
    new, changed, other = locked.items.of()
    assert (new.server, new.name, new.approved, new.item) == ("one", "a_new_tool", None, NEW)
    assert (changed.kind, changed.name, changed.digest) == ("tools", "read", digest_of(SEND))
    assert (changed.item, changed.approved) == (SEND, READ) and "has changed" in changed.reason
    assert (other.server, other.approved) == ("two", None) and "its server is not in the lock" in other.reason
    assert locked.items.of("two") == [other]
    assert locked.items.lock_file == str(tmp_path / "tools.lock")

    locked.approve({"tools": {"read": SEND}})
    assert [found.name for found in locked.items.of("one")] == ["a_new_tool"], "it is approved now"


async def test_each_form_of_an_item_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    locked = Locked(tmp_path)
    for _ in range(3):
        assert locked.hides("one", SEND) and locked.hides("one", {"name": "p"}, "prompts")
    assert locked.counted == {"tools": 1, "prompts": 1} == Counter(tools=locked.audit.counts["blocked"] - 1, prompts=1)
    told = "tool one/read is hidden from clients: it has changed since it was locked (gateway.policy.lock)"
    assert next(line.getMessage() for line in caplog.records if line.name.endswith("unapproved_items")) == told
    assert locked.hides("one", SEND | {"title": "Other"}) and locked.counted["tools"] == 2


async def test_many_items_of_a_server_fill_neither_the_log_nor_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locked = Locked(tmp_path)
    for number in range(150):
        locked.hides("one", {"name": f"t{number}", "description": "x" * 40_000})
    assert locked.counted["tools"] == 150 and locked.audit.counts["blocked"] == 100 == len(caplog.records)
    assert 90 < len(locked.items.of("one")) < 150, "4 MiB of them"
    assert locked.hides("two", READ) and len(locked.items.of("two")) == 1
    assert locked.hides("two", {"name": "big", "description": "x" * (1 << 19)})
    assert [found.item for found in locked.items.of("two") if found.name == "big"] == [{"name": "big"}]
