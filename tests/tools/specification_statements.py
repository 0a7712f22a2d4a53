"""Reads the statements of the MCP specification that bind somebody: those with MUST, SHOULD, REQUIRED or MAY.

`python -m tests.tools.specification_statements SPECIFICATION EXT_TASKS`, with checkouts of the repositories
`modelcontextprotocol/modelcontextprotocol` and `modelcontextprotocol/ext-tasks`, writes a digest of each statement to
`tests/conformance/letter/statements.toml`, and prints the statements that have no row in the tables beside that file.
The specification itself is not needed to run the tests.
"""

import argparse
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance.letter import table

__all__ = ["DIGESTS", "Statement", "read", "statements"]

DIGESTS: Final = table.FOLDER / "statements.toml"

HANDSHAKE_PAGES: Final = (
    "basic/authorization",
    "basic/index",
    "basic/lifecycle",
    "basic/transports",
    "basic/utilities/cancellation",
    "basic/utilities/ping",
    "basic/utilities/progress",
)
PAGES: Final = {
    "2025-03-26": HANDSHAKE_PAGES,
    "2025-06-18": HANDSHAKE_PAGES,
    "2025-11-25": HANDSHAKE_PAGES,
    "2026-07-28": (
        "basic/authorization/index",
        "basic/index",
        "basic/patterns/cancellation",
        "basic/patterns/index",
        "basic/patterns/mrtr",
        "basic/patterns/progress",
        "basic/patterns/subscriptions",
        "basic/transports/index",
        "basic/transports/stdio",
        "basic/transports/streamable-http",
        "basic/versioning",
        "server/discover",
        "server/utilities/caching",
        "server/utilities/completion",
        "server/utilities/logging",
        "server/utilities/pagination",
    ),
    "tasks": ("tasks",),
}
"""The pages that are read, by revision; the draft of the tasks extension counts as one."""

BINDS: Final = re.compile(r"\b(MUST|SHOULD|SHALL|REQUIRED|RECOMMENDED)\b")
ALLOWS: Final = re.compile(r"\b(MAY|OPTIONAL)\b")
EXAMPLE: Final = "\0"
"""Stands for a block of code between paragraphs."""
ITEM: Final = re.compile(r"(\s*)(?:[-*]|\d+\.)\s+(.*)")
SENTENCE_END: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)\s+(?=[A-Z`\"(])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One sentence, list item or table row, without marks of emphasis and addresses of links."""

    section: str
    says: str

    @property
    def binds(self) -> bool:
        """Whether somebody has to do something; else the statement only allows."""
        return BINDS.search(self.says) is not None

    @property
    def digest(self) -> str:
        """What stands for section and words."""
        return table.digest(self.section, self.says)


@dataclass(slots=True, kw_only=True)
class _Block:
    """A paragraph, an item of a list or a row of a table. `introduces`: its last words are those of a list's items."""

    section: str
    indent: int
    is_item: bool
    text: str
    introduces: bool = False

    @property
    def opening(self) -> str:
        """The last sentence, if it has a colon at its end."""
        return SENTENCE_END.split(self.text)[-1] if self.text.endswith(":") else ""


def statements(page: str) -> list[Statement]:
    """The statements of a page in Markdown, in their order, each once."""
    blocks = list(_blocks(page))
    wholes = []
    openings: list[_Block] = []
    for block in blocks:
        wholes.append(block.text)
        if block.is_item:
            openings = [opening for opening in openings if not opening.is_item or opening.indent < block.indent]
            if (opening := next((o for o in reversed(openings) if o.opening), None)) and _needs(block, opening):
                wholes[-1] = f"{opening.opening} {block.text}"
                opening.introduces = True
            openings.append(block)
        elif block.indent == 0:
            openings = [block]  # Headings and examples, which are blocks without text, end a list, too.
    found: dict[Statement, None] = {}
    for block, whole in zip(blocks, wholes, strict=True):
        sentences = SENTENCE_END.split(whole)
        for sentence in sentences[:-1] if block.introduces else sentences:
            if BINDS.search(sentence) or ALLOWS.search(sentence):
                found[Statement(section=block.section, says=sentence.strip())] = None
    return list(found)


def _needs(item: _Block, opening: _Block) -> bool:
    """Whether an item of a list is no statement without the words that introduce the list."""
    keyword = re.search(f"{BINDS.pattern}|{ALLOWS.pattern}", SENTENCE_END.split(item.text)[0])
    if keyword is not None:
        return keyword.start() == 0
    return BINDS.search(opening.opening) is not None or ALLOWS.search(opening.opening) is not None


def _blocks(page: str) -> Iterator[_Block]:
    """The parts of a page that are text, code left out."""
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.S)
    page = re.sub(r"^```.*?^```", f"\n{EXAMPLE}\n", page, flags=re.S | re.M)
    page = re.sub(r"^( +)```.*?^\1```", "\n", page, flags=re.S | re.M)
    page = re.sub(r"^\[[^\]]+\]: .*$", "", page, flags=re.M)
    section, block = "", None
    for line in page.splitlines():
        line = line.removeprefix(">").removeprefix(" ") if line.startswith(">") else line
        if heading := re.match(r"#+ (.*)", line):
            section = _plain(heading[1])
        item = ITEM.match(line)
        is_row = line.lstrip().startswith("|")
        ends = not line.strip() or line == EXAMPLE or heading or re.fullmatch(r"\s*</?[A-Za-z][^>]*>\s*", line)
        if block is not None and (ends or item or is_row):
            yield _finished(block)
            block = None
        if heading or line == EXAMPLE:
            yield _Block(section=section, indent=0, is_item=False, text="")
        if ends:
            continue
        indent = len(line) - len(line.lstrip())
        if is_row:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            yield _finished(_Block(section=section, indent=indent, is_item=False, text=" | ".join(cells)))
        elif item:
            block = _Block(section=section, indent=indent, is_item=True, text=item[2])
        elif block is not None:
            block.text += " " + line.strip()
        else:
            block = _Block(section=section, indent=indent, is_item=False, text=line.strip())
    if block is not None:
        yield _finished(block)


def _finished(block: _Block) -> _Block:
    block.text = _plain(block.text)
    return block


def _plain(text: str) -> str:
    """Text without marks of emphasis, tags and addresses of links; what stands between backticks stays as it is."""
    text = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    parts = re.split(r"(`[^`]*`)", text)
    for place in range(0, len(parts), 2):
        part = re.sub(r"\[([^\]]+)\]", r"\1", parts[place])
        part = re.sub(r"\*\*|(?<!\w)[_*](?=\w)|(?<=[\w.])[_*](?!\w)|</?[a-zA-Z]\w*[^>]*>", "", part)
        parts[place] = html.unescape(part)
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def read(specification: Path, ext_tasks: Path) -> dict[tuple[str, str], list[Statement]]:
    """The statements of all pages, by revision and page."""
    found = {}
    for revision, pages in PAGES.items():
        for page in pages:
            folder = specification / "docs/specification" / revision
            path = ext_tasks / "specification/draft/tasks.md" if revision == "tasks" else folder / f"{page}.mdx"
            found[revision, page] = statements(path.read_text(encoding="utf-8"))
    return found


def digests(found: dict[tuple[str, str], list[Statement]]) -> str:
    """The file of digests: for each page those of statements that bind, and those of statements that allow."""
    lines = [
        "# Digests of the statements of the specification; tests/tools/specification_statements.py writes this file."
    ]
    for (revision, page), said in found.items():
        lines += ["", f'["{revision}"."{page}"]']
        for name, is_binding in (("binds", True), ("allows", False)):
            texts = [statement.digest for statement in said if statement.binds is is_binding]
            lines += [f"{name} = ["]
            lines += [f"    {json.dumps(texts[at : at + 7])[1:-1]}," for at in range(0, len(texts), 7)]
            lines += ["]"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specification", type=Path)
    parser.add_argument("ext_tasks", type=Path)
    given = parser.parse_args()
    found = read(given.specification, given.ext_tasks)
    DIGESTS.write_text(digests(found), encoding="utf-8")
    rows = {(row.revision, row.page, row.digest) for row in table.rows()}
    for (revision, page), said in found.items():
        for statement in said:
            if statement.binds and page not in table.PARTIAL and (revision, page, statement.digest) not in rows:
                print(f"no row: {revision} {page} §{statement.section}: {statement.says}")


if __name__ == "__main__":
    main()
