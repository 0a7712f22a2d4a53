"""`python -m tests.tools.room_coverage FILE`: prints lines and branches covered of each room, of coverage's JSON."""

import json
import sys
from collections import Counter
from pathlib import Path

_COLUMNS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def _row(room: str, counts: Counter[str]) -> str:
    statements, lines, branches, taken = (counts[column] for column in _COLUMNS)
    covered = f"{lines / max(1, statements):9.1%} {taken / max(1, branches):9.1%}" if branches else ""
    return f"{room:24} {statements:9} {lines:9} {branches:9} {taken:9} {covered}"


def main() -> None:
    rooms: dict[str, Counter[str]] = {}
    for name, file in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["files"].items():
        first, *more = Path(name).parts[:-1]
        room = f"gateway/{more[0]}" if first == "gateway" and more else first
        rooms.setdefault(room, Counter()).update({column: file["summary"][column] for column in _COLUMNS})
    print(f"{'room':24} {'lines':>9} {'covered':>9} {'branches':>9} {'covered':>9} {'lines':>9} {'branches':>9}")
    for room in sorted(rooms):
        print(_row(room, rooms[room]))
    print(_row("all", sum(rooms.values(), Counter())))


if __name__ == "__main__":
    main()
