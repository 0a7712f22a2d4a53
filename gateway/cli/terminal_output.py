"""Print on the operator's terminal, with control characters in foreign text escaped.

Names, descriptions, URIs and messages come from clients and servers. Their control characters are printed as escapes,
and their text is never taken as markup: only `rich.text.Text` sets styles.
"""

import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gateway.observability.escaped_text import visible

_WIDE: Final = 220
_STYLES: Final = {"warning": "bold yellow", "ignored": "dim", "fetching": "dim", "waiting": "dim"}


class Terminal(Console):
    """Print to stdout, or to stderr if `stderr`, with control characters escaped. If stdout is not a terminal, lines
    are up to 220 characters long."""

    def __init__(self, *, stderr: bool = False) -> None:
        bounded = (sys.stderr if stderr else sys.stdout).isatty()
        width = None if bounded or stderr else _WIDE
        super().__init__(stderr=stderr, soft_wrap=True, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text with its control characters escaped, for rich, which calls this for each string."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to print, with control characters escaped. rich calls this for all that it
        prints."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def print_labelled(self, kind: str, message: str) -> None:
        """Print a line that begins with the word `kind`, such as `warning`, in that word's colour."""
        style = _STYLES.get(kind, "bold red")
        self.print(Text.assemble((kind, style), " ", visible(message)))

    def print_waiting(self, message: str) -> None:
        """Print what the command waits for. Print it only on a terminal: in a file, a line of progress would look like
        an error."""
        if self.file.isatty():
            self.print_labelled("waiting", message)
