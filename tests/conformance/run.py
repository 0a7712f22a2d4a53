"""`make conformance`: the official suite, and the interaction tests of the SDK, with the gateway in between.

Each run is compared with what is expected, in either direction: a check that fails must be expected to, with a reason,
and one that is expected to fail must. README.md in this folder says how to read the output.
"""

import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance import clients, interaction, servers
from tests.conformance.official import Check, Result, differences, passed, reasons
from tests.tools.obtain import CACHE, sdk_source

AT_ONCE = 4
"""Runs beside each other: on two cores most of each is waiting."""

EXPECTED = tomllib.loads(Path(__file__).with_name("expected.toml").read_text(encoding="utf-8"))


def _official(run: Callable[[], tuple[list[Check], str]], passes: int, expected: Mapping[str, Any]) -> Result:
    checks, output = run()
    return Result(
        summary=f"{passed(checks)} of {len(checks)} checks passed",
        expected=reasons(expected),
        found=tuple(differences(checks, passes, expected)),
        output=output,
    )


def runs() -> Iterator[tuple[str, Callable[[], Result]]]:
    """What there is to run, by name. The longest is first, so that nothing waits for it at the end."""
    yield interaction.NAME, interaction.compared
    for half in (servers, clients):
        for run in half.RUNS:
            yield run.name, partial(_official, partial(half.run_suite, run), run.passes, EXPECTED.get(run.name, {}))


def main() -> int:
    """0 when every run is as expected, or every one with `argv[1]` in its name."""
    sdk_source(version("mcp"))  # fetched before the first server starts, which has 30 s
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [(name, run) for name, run in runs() if only in name]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [line for lines in pool.map(lambda each: _differences(*each), chosen) for line in lines]
    print("\n".join(found) or f"{len(chosen)} runs, all as expected")  # last, because CI shows the end
    return int(bool(found))


def _differences(name: str, run: Callable[[], Result]) -> list[str]:
    """Run and print; return a line for each difference."""
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
    return [f"{name}: not as expected: {line}" for line in result.found]


if __name__ == "__main__":
    sys.exit(main())
