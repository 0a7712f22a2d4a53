"""`make conformance`: the official suite, and the interaction tests of the SDK, with the gateway in between.

Each run is compared with what is expected, in either direction: a check that fails must be expected to, with a reason,
and one that is expected to fail must. README.md in this folder says how to read the output.
"""

import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance import clients, interaction, servers
from tests.conformance.official import differences, is_late, passed
from tests.conformance.result import Result
from tests.tools.obtain import CACHE, sdk_source

MOST_LATE = 6
"""Late checks that a busy run may have. The suite has six that wait for a stream for less than two seconds."""

AT_ONCE = 2
"""Runs beside each other, on two cores. Those that make the machine busy are alone."""

EXPECTED = tomllib.loads(Path(__file__).with_name("expected.toml").read_text(encoding="utf-8"))


def _server_run(run: servers.Run, expected: Mapping[str, Any]) -> Result:
    """The result of a run. A run on a busy machine may use up a time of a client's own: what it finds counts if a
    second attempt is not as expected either. The first attempt is told."""
    result = _attempt(run, expected)
    if not (run.busy and result.found):
        return result
    again = _attempt(run, expected)
    return replace(again, expected=(*again.expected, *(f"only at a first attempt: {line}" for line in result.found)))


def _attempt(run: servers.Run, expected: Mapping[str, Any]) -> Result:
    checks, output = servers.run_suite(run)
    # A process may take longer to start than the suite waits. The same run on a machine that is not busy waits for all.
    late = [check for check in checks if run.busy and is_late(check)]
    if len(late) > MOST_LATE:  # a gateway that never answers is not slow
        late = []
    reasons = (
        f"{scenario}: {name}: {entry['status']}: {entry['reason']}"
        for scenario, group in expected.items()
        for name, entry in group.items()
    )
    return Result(
        summary=f"{passed(checks)} of {len(checks)} checks passed",
        expected=(*reasons, *(f"late: {check.scenario}: {check.id}: {check.message}" for check in late)),
        found=tuple(differences([one for one in checks if one not in late], run.passes - len(late), expected)),
        output=output,
    )


def runs() -> Iterator[tuple[str, Callable[[], Result]]]:
    """What there is to run, by name."""
    for run in servers.RUNS:
        yield run.name, partial(_server_run, run, EXPECTED.get(run.name, {}))
    for client in clients.RUNS:
        yield client.name, partial(clients.compared, client, EXPECTED.get(client.name, {}))
    yield interaction.NAME, interaction.compared


def main() -> int:
    """0 when every run is as expected, or every one with `argv[1]` in its name."""
    sdk_source(version("mcp"))  # fetched before the first server starts, which has 30 s
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [(name, run) for name, run in runs() if only in name]
    alone = {run.name for run in servers.RUNS if run.busy}
    with ThreadPoolExecutor(AT_ONCE) as pool:  # most of each is waiting
        good = sum(pool.map(lambda each: _is_as_expected(*each), [each for each in chosen if each[0] not in alone]))
    good += sum(_is_as_expected(name, run) for name, run in chosen if name in alone)
    print(f"{good} runs as expected, {len(chosen) - good} not")
    return int(good != len(chosen))


def _is_as_expected(name: str, run: Callable[[], Result]) -> bool:
    begun = time.monotonic()
    result = run()
    lines = [f"{name}: {result.summary} ({time.monotonic() - begun:.0f} s)"]
    lines += [f"  expected: {line}" for line in result.expected]
    lines += [f"  not as expected: {line}" for line in result.found]
    if result.found:
        log = CACHE / f"conformance-{name.replace(' ', '-')}.log"
        log.write_text(result.output, encoding="utf-8")
        lines.append(f"  the run's own output: {log.relative_to(CACHE.parent)}")
    print("\n".join(lines), flush=True)
    return not result.found


if __name__ == "__main__":
    sys.exit(main())
