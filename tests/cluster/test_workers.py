"""`run --workers N`: replicas in processes of their own on one port."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.concurrent_clients import AsyncModern, run_concurrently
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, gone
from tests.support.worker_processes import KEYS


@contextlib.contextmanager
def workers(redis: RunningRedis, count: int) -> Iterator[RunningGateway]:
    options = {"store": redis.url}
    arguments = ["--workers", str(count)]
    with running_gateway({"demo": server(DEMO)}, options=options, env=KEYS, arguments=arguments) as gateway:
        yield gateway


async def opened(http: httpx.AsyncClient, url: str) -> str:
    client = AsyncModern(http)
    await client.tool(url, "remember", {"key": "k", "value": "kept"})
    return client.token


@requirement("proc.gone")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nothing_is_left_when_the_parent_ends(redis_server: RunningRedis, how: str) -> None:
    with workers(redis_server, 2) as gateway:
        run_concurrently(lambda http, n: opened(http, gateway.url), 4)
        everything = descendants(gateway.pid)
        assert len(everything) > 6
        getattr(gateway, how)()
        assert gone(everything)


@requirement("ops.config")
@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/sessions.db"])
def test_a_store_of_one_process_refuses_several(store: str, tmp_path: Path) -> None:
    ran = run_command("run", "--workers", "2", "--store", store.format(tmp_path), "--", "true")
    assert ran.returncode == 2 and "more than one worker needs redis://" in ran.stderr
