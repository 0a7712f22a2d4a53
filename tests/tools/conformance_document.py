"""`python -m tests.tools.conformance_document`: writes docs/conformance.md from the table of statements."""

import textwrap
from collections import Counter
from pathlib import Path
from typing import Final

from tests.conformance.letter.table import Row, rows

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
_TITLES: Final = {"tasks": "tasks extension (draft of 2026-08)", "skills": "Skills extension (stable)"}
_HEAD: Final = """# Conformance

What the gateway does of each MUST and SHOULD of the pages of each revision that have any (base protocol, transports,
patterns, lifecycle or versioning, discovery, server and client features, utilities), of the tasks extension and the
Skills extension, and of the authorization pages what binds a resource server. A gateway is a server to its clients and
a client of its servers.

*Met*: a test shows it. *Not ours*: it binds somebody else, or is about something that the gateway does not do. The rows
are in `tests/conformance/letter`, with the words of each statement. `make conformance` runs the official suites.

| revision | statements | met | not ours | not met |
|---|---|---|---|---|
"""


def written() -> str:
    """The document."""
    found = list(rows())
    lines = []
    for revision in dict.fromkeys(sorted((row.revision for row in found), key=lambda name: (name in _TITLES, name))):
        counts = Counter(row.outcome for row in found if row.revision == revision)
        title = _TITLES.get(revision, revision)
        lines.append(f"| {title} | {counts.total()} | {counts['met']} | {counts['not_ours']} | {counts['not_met']} |")
    reasons: dict[str, list[Row]] = {}
    for row in found:
        if row.outcome == "not_met":
            reasons.setdefault(row.why[0], []).append(row)
    lines += ["", "## Not met", ""]
    for reason, its in reasons.items():
        where = sorted({f"{row.revision} {row.page}" if row.page not in _TITLES else row.page for row in its})
        lines += _item(f"- {reason[0].upper()}{reason[1:]}. ({', '.join(where)})")
        for says in dict.fromkeys(row.says for row in its):
            lines += _item(f"  - {says}")
    return _HEAD + "\n".join(lines) + "\n"


def _item(text: str) -> list[str]:
    """Return the lines of an item of a list. Its later lines are indented as its text."""
    later = " " * (text.index("- ") + 2)
    return textwrap.wrap(text, 150, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    DOCUMENT.write_text(written(), encoding="utf-8")
