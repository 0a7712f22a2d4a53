"""The code blocks of the documents. A comment above a block says how the block is run, unless it runs alone:

`<!-- run: serves -->`, `serves, in the project`, `on stdin`, `with CONFIG` (beside a gateway that serves it),
`elsewhere: TEST`, or `not here: REASON`. A block of output below a command is marked `<!-- prints -->`: the command has
to print these lines, where `…` stands for any text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.gateway_process import ROOT

DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md", ROOT / "bench/README.md")
)
_BLOCK = re.compile(
    r"(?:<!-- run: (?P<note>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)```"
    r"(?:\n\n<!-- prints -->\n```\n(?P<output>.*?)```)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One code block and its place. `note` is the text of the comment above it, empty without one; `output`: what the
    document says that it prints."""

    path: Path
    line: int
    language: str
    text: str
    note: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> Iterator[Block]:
    """All code blocks of the documents in these languages, in the order of the documents."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            if found["language"] in languages:
                line = text.count("\n", 0, found.start()) + 1
                yield Block(
                    path=path,
                    line=line,
                    language=found["language"],
                    text=found["text"],
                    note=found["note"] or "",
                    output=found["output"] or "",
                )
