"""Fuzz for so many minutes; 1 and what was found, made small, when something was."""

import argparse
import re
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from random import Random

from rich.console import Console

from tests.attack.fuzz import repeats
from tests.attack.fuzz.envelope import CHECKS, run
from tests.attack.fuzz.framing import BEHAVIOURS, TOLERATED, differences, gateway_reads, referee_reads, remembering
from tests.attack.fuzz.repeats import conversation
from tests.attack.fuzz.requests import pieces, repeated, smaller, stream

_console = Console(highlight=False, soft_wrap=True)


def _kind(finding: str) -> str:
    """What it is, without the particulars."""
    return re.sub(r"\d+|['\"(\[{].*| is .*", "", finding)[:40]


def _fuzz_framing(first: int, until: float) -> tuple[int, Counter[str], set[str]]:
    """How many streams were tried, which differences were tolerated, which kinds were found."""
    number, tolerated, found = first, Counter[str](), set[str]()
    while time.monotonic() < until:
        number += 1
        random = Random(number)
        is_repeated = number % 4 == 0
        segments = repeated(random) if is_repeated else pieces(random, stream(random))
        behaviour = random.choice(BEHAVIOURS)
        findings, difference = differences(segments, behaviour, remembering if is_repeated else None)
        tolerated[difference or "none"] += 1
        for finding in findings:
            if _kind(finding) not in found:
                found.add(_kind(finding))
                _tell(number, segments, behaviour, finding)
    return number - first, tolerated, found


def _tell(number: int, segments: Sequence[bytes], behaviour: str, finding: str) -> None:
    made = remembering if number % 4 == 0 else None

    def is_it(attempt: Sequence[bytes]) -> bool:
        return any(_kind(other) == _kind(finding) for other in differences(attempt, behaviour, made)[0])

    small = smaller(segments, is_it)
    _console.print(f"[bold red]found[/] with seed {number}: {differences(small, behaviour, made)[0]}", markup=True)
    read = {"gateway": gateway_reads(small, behaviour, made), "h11": referee_reads(small)}
    for name, value in {"sent": small, "app": behaviour, **read}.items():
        _console.print(f"  {name:8}{value}", markup=False)


def _fuzz_repeats(first: int, until: float) -> tuple[Counter[str], int]:
    """What became of the requests at the memory of their connection, and how many conversations it changed."""
    became, found, number = Counter[str](), 0, first
    while time.monotonic() < until and not found:
        number += 1
        said = conversation(Random(number))
        findings, counts = repeats.differences(said)
        became += counts
        if findings:
            found += 1
            _console.print(f"[bold red]found[/] with seed {number}:", markup=True)
            for text in (*findings, str(said.pieces)):
                _console.print(f"  {text}", markup=False)
    return became, found


def _fuzz_envelope(first: int, until: float) -> tuple[Counter[str], set[str]]:
    """How many messages of each kind were tried, and which checks found something."""
    tried, found, number = Counter[str](), set[str](), first
    while time.monotonic() < until:
        number += 1
        for name in CHECKS:
            if name in found or time.monotonic() > until:
                continue
            try:
                run(name, number, _EXAMPLES)
            except (Exception, ExceptionGroup) as error:
                found.add(name)
                _console.print(f"[bold red]found[/] with seed {number}, {name}:", markup=True)
                _console.print("".join(traceback.format_exception(error, limit=-4)), markup=False)
            tried[name] += _EXAMPLES
    return tried, found


_EXAMPLES = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="a third of it for each")
    parser.add_argument("--seed", type=int, help="where to begin; told when none is given")
    parser.add_argument("--only", choices=("framing", "repeats", "envelope"))
    arguments = parser.parse_args()
    # Time-outs and refusals are counted by the thousand here, not logged.
    first = secrets.randbelow(1 << 40) if arguments.seed is None else arguments.seed
    _console.print(f"seed {first}")
    shares = 1 if arguments.only else 3
    share_s, found = arguments.minutes * 60 / shares, 0
    if arguments.only in (None, "repeats"):
        became, kinds_of_memory = _fuzz_repeats(first, time.monotonic() + share_s)
        found += kinds_of_memory
        told = ", ".join(f"{times} {name}" for name, times in became.most_common())
        _console.print(f"connections with and without memory: {told}; {kinds_of_memory} findings.")
    if arguments.only in (None, "framing"):
        count, tolerated, kinds = _fuzz_framing(first, time.monotonic() + share_s)
        found += len(kinds)
        _console.print(f"framing: {count} streams, {len(kinds)} findings. How the gateway differs from h11:")
        for name, times in tolerated.most_common():
            _console.print(f"  {times:8} {name:9} {TOLERATED.get(name, 'Not at all.')}")
    if arguments.only in (None, "envelope"):
        tried, kinds = _fuzz_envelope(first, time.monotonic() + share_s)
        found += len(kinds)
        told = ", ".join(f"{times} of {name}" for name, times in tried.items())
        _console.print(f"messages: {told}; {len(kinds)} findings.")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
