"""The table of statements: who is bound by each, and the test that shows it, or the reason why there is none.

The rows are in the TOML files beside this module, one file for each page: those of 2026-07-28, those of the revisions
with a handshake together, the tasks extension and the Skills extension. A page says which revisions its statements are
of; a statement of others says so itself. Statements of a section that are bound and shown alike stand together.
`statements.toml` has digests of the statements, so that rows can be compared with the specification where that is not
at hand.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
PARTIAL: Final = frozenset({"basic/authorization", "basic/authorization/index"})
"""Pages of which only the statements that bind a resource server have rows."""
_OUTCOMES: Final = ("met", "not_ours", "not_met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One statement of one revision. `outcome` is `met`, `not_ours` or `not_met`; `why` has tests or the reason."""

    revision: str
    page: str
    section: str
    says: str
    binds: str
    outcome: str
    why: tuple[str, ...]

    @property
    def digest(self) -> str:
        return digest(self.section, self.says)


def digest(section: str, says: str) -> str:
    """12 hex digits that stand for a statement."""
    return hashlib.sha256(f"{section}\n{says}".encode()).hexdigest()[:12]


def rows() -> Iterator[Row]:
    """All rows, one for each revision that has the statement."""
    for path in sorted(FOLDER.glob("*/*.toml")):
        page = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in page["statement"]:
            (outcome,) = (name for name in _OUTCOMES if name in entry)
            why = entry[outcome]
            together = entry["says"] if isinstance(entry["says"], list) else [entry["says"]]
            for says, revision in product(together, entry.get("revisions", page["revisions"])):
                yield Row(
                    revision=revision,
                    page=page["page"],
                    section=entry["section"],
                    says=says,
                    binds=entry["binds"],
                    outcome=outcome,
                    why=tuple(why) if isinstance(why, list) else (why,),
                )


def statements() -> dict[str, dict[str, dict[str, Any]]]:
    """Digests by revision and page: those that bind somebody, and those that allow something."""
    return tomllib.loads((FOLDER / "statements.toml").read_text(encoding="utf-8"))
