"""Load of httpx: `httpx_load.py URL PLAN SECONDS`.

Each session of the plan has a connection with one call in flight, with another id and another length each time, as
clients send them. Says what wrk's script says.
"""

import asyncio
import json
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx


class Load:
    """The calls of all sessions, until it is over."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._began = time.perf_counter()
        self._until = self._began + seconds
        self._times: list[float] = []
        self._errors = 0

    async def run(self, http: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any]) -> None:
        """One session: at least one call."""
        number = 0
        while not number or time.perf_counter() < self._until:
            number += 1
            body["id"], body["params"]["arguments"]["text"] = number, "x" * (number % 50)
            sent = time.perf_counter()
            try:
                answer = await http.post(self._url, json=body, headers=headers)
                self._errors += answer.status_code != 200 or '"result"' not in answer.text
            except httpx.HTTPError:
                self._errors += 1
            self._times.append(time.perf_counter() - sent)

    def found(self) -> dict[str, int]:
        """What was measured."""
        took, times = time.perf_counter() - self._began, sorted(self._times)
        p50, p99 = (round(1e6 * times[min(len(times) - 1, int(len(times) * share))]) for share in (0.5, 0.99))
        counts = {"requests": len(times), "duration_us": round(took * 1e6), "errors": self._errors}
        return {**counts, "p50_us": p50, "p99_us": p99}


async def main(url: str, plan: list[dict[str, Any]], seconds: float) -> None:
    context = ssl.create_default_context()  # made once: each client would make its own
    clients = [httpx.AsyncClient(timeout=30, verify=context) for _ in plan]
    load = Load(url, seconds)
    await asyncio.gather(*(load.run(http, **each) for http, each in zip(clients, plan, strict=True)))
    sys.stdout.write(f"RESULT {json.dumps(load.found())}\n")
    for http in clients:
        await http.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), float(sys.argv[3])))
