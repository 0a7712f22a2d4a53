"""The audit trail has parts that are capped one by one, on every backend."""

from pathlib import Path

import pytest

from session_store import AuditEvent, backend_for
from session_store.ports.accounting import MAX_AUDIT_EVENTS
from tests.requirements import requirement
from tests.support.redis_server import RunningRedis


@pytest.mark.anyio
@requirement("wall.audit")
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
async def test_strangers_flush_nothing_but_their_own(store: str, redis_server: RunningRedis, tmp_path: Path) -> None:
    redis_server.client().flushall()
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 's.db'}", "redis": redis_server.url}[store]
    backend = backend_for(url)
    await backend.open()
    try:
        named = [
            AuditEvent(at=1.0, event="operated", reason="drained"),
            AuditEvent(at=2.0, event="created", principal="api-key:alice"),
            AuditEvent(at=3.0, event="refused", principal="api-key:alice"),
        ]
        await backend.audit.record(named)
        for start in range(0, MAX_AUDIT_EVENTS + 1_000, 1_000):
            many = [AuditEvent(at=4.0 + start, event="refused", client="192.0.2.1", count=7)] * 500
            await backend.audit.record(many + [AuditEvent(at=4.0, event="expired", principal="anonymous")] * 500)
        kept = await backend.audit.recent(2 * MAX_AUDIT_EVENTS)
        assert kept[-3:] == named[::-1]
        most = 2_000 if store == "memory" else MAX_AUDIT_EVENTS
        assert most <= len(kept) - 3 < most + 200  # Redis cuts in blocks
        assert kept[0].count == 7 and kept[0].client == "192.0.2.1"
    finally:
        await backend.close()
