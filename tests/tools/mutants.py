"""`python -m tests.tools.mutants`: prints how many faults, put into the rooms that decide, their unit tests notice.

`[tool.mutmut]` of pyproject.toml names the rooms and the tests. The same seed draws the same mutants of the same
sources, so that a table before a change of the tests can be compared with one after it.
"""

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

SEED: Final = 1
TRIED: Final = 500
"""About how many are tried. All of them take hours."""

_OUTCOMES: Final = ("killed", "timeout", "survived", "no tests")
_STEADY: Final = {"CI": "1", "PYTHONHASHSEED": "0"}
"""With `CI`, Hypothesis draws the same examples each time, and keeps none of them for the next mutant."""


def _mutants() -> dict[Path, list[str]]:
    """The names of all mutants of each module."""
    return {
        path: [get_mutant_name(path, name) for name in mutate_file_contents(str(path), path.read_text()).mutant_names]
        for path in sorted(walk_mutatable_files())
    }


def _sample(mutants: dict[Path, list[str]]) -> Iterator[str]:
    """Draws the same share of each module's mutants. A changed module leaves the draws of others about as they were."""
    share = TRIED / sum(map(len, mutants.values()))
    for path, names in mutants.items():
        yield from random.Random(f"{SEED} {path}").sample(names, min(len(names), round(len(names) * share)))


def _outcomes(path: Path, tried: set[str]) -> dict[str, str]:
    data = SourceFileMutationData(path=path)
    data.load()
    return {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items() if name in tried}


def _row(room: str, found: int, counts: Counter[str]) -> str:
    died = (counts["killed"] + counts["timeout"]) / max(1, counts.total())
    others = counts.total() - sum(counts[outcome] for outcome in _OUTCOMES)
    figures = (found, counts.total(), *(counts[outcome] for outcome in _OUTCOMES), others)
    return f"{room:20}" + "".join(f"{figure:10}" for figure in figures) + f"{died:10.1%}"


def main() -> None:
    shutil.rmtree("mutants", ignore_errors=True)
    mutants = _mutants()
    tried = set(_sample(mutants))
    subprocess.run(
        [Path(sys.executable).with_name("mutmut"), "run", *sorted(tried)], env={**os.environ, **_STEADY}, check=True
    )
    found: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    survivors: list[str] = []
    for path, names in mutants.items():
        outcomes = _outcomes(path, tried)
        found[str(path.parent)] += len(names)
        counts.setdefault(str(path.parent), Counter()).update(outcomes.values())
        survivors += [f"{outcome}: {name}" for name, outcome in outcomes.items() if outcome != "killed"]
    print(*survivors, sep="\n")
    print(f"\nseed {SEED}; `mutmut show NAME` shows a mutant\n")
    print(f"{'room':20}" + "".join(f"{word:>10}" for word in ("mutants", "tried", *_OUTCOMES, "other", "died")))
    for room in counts:
        print(_row(room, found[room], counts[room]))
    print(_row("all", found.total(), sum(counts.values(), Counter())))


if __name__ == "__main__":
    main()
