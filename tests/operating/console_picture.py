"""The console's overview with some sessions: `python -m tests.operating.console_picture FILE` takes it anew."""

import sys
import threading
import time

import httpx
from playwright.sync_api import sync_playwright

from tests.operating.conftest import launched, replica
from tests.operating.console_browser import signed_in
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import running_redis

_AGENTS = ("claude-desktop", "ci-agent", "research-agent", "inspector")
_SECONDS = 36.0


def _work(url: str, name: str, end: threading.Event, fails: bool) -> None:
    with httpx.Client(timeout=20) as http:
        client = Legacy(url, http).open(name=name, meta={"orbit": {"workspace": "team-" + name[:2]}})
        turn = 0
        while not end.is_set():
            turn += 1
            client.tool("fail" if fails and turn % 20 == 0 else "pid")
            time.sleep(0.02 + 0.05 * abs((time.monotonic() % 10) - 5) / 5)


def main(path: str) -> None:
    with running_redis() as redis, replica(redis) as one, replica(redis) as other, sync_playwright() as playwright:
        end = threading.Event()
        workers = [
            threading.Thread(target=_work, daemon=True, args=(gateway.at("probe"), name, end, name == "ci-agent"))
            for gateway in (one, other)
            for name in _AGENTS
        ]
        for worker in workers:
            worker.start()
        time.sleep(_SECONDS)
        with launched(playwright) as browser:
            page = signed_in(browser.new_context(viewport={"width": 1240, "height": 760}), other)
            page.wait_for_timeout(2_500)
            page.screenshot(path=path)
        end.set()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main(sys.argv[1])
