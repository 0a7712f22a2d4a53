"""Define what a page of the console consists of. Each module of `gateway.admin.pages` defines one."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request

from gateway.admin.operations import Operations

BASE_URL: Final = "gateway.base_url"
"""The key of `request.scope` that has the URL at which the browser has this gateway."""

OPERATOR: Final = "gateway.operator"
"""The key of `request.scope` that has the name of the operator who looks at the page."""


Facts = Callable[[Operations, Request], Awaitable[dict[str, Any]]]
"""Read what the template shows. May raise what `Operators` raises; the console shows such an error as a page."""

Action = Callable[[Operations, Request, str], Awaitable[str | dict[str, Any]]]
"""Do what a form of the page asks for, in the name of an operator (the last argument). Return the path of the page that
is shown next; or the variables of the template, if the page itself shows the outcome, where images may be of servers.
May raise what `Operators` raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A page: its route, its data and its templates.

    `path`: the route, which begins with `/admin`. Path parameters are in `request.path_params`.
    `facts`: the variables of the template. They are read again every few seconds while the page is open.
    `title`, `head` and `live`: Jinja templates, with the macros of `tables.html` as `tables`. `head` is rendered once;
        `live`, below it, is rendered with new facts and replaced in the browser.
    `label`: the name in the navigation; empty for a page that the navigation does not list.
    `position`: the place in the navigation, the lowest first.
    `shortcut`: the letter that opens the page after `g`; empty for none.
    `icon`: how the icon beside the label is drawn: the path of an SVG of 16 by 16, drawn as lines.
    `actions`: what the forms of the page can ask for: routes that accept POST, which begin with `/admin`.
    `is_live`: False if the page changes by its forms only.
    """

    path: str
    facts: Facts
    title: str
    head: str = ""
    live: str
    label: str = ""
    position: int = 0
    shortcut: str = ""
    icon: str = ""
    actions: Mapping[str, Action] = field(default_factory=dict)
    is_live: bool = True

    @property
    def template(self) -> str:
        """Return the template of the whole page. Each block imports the macros, because `live` is also rendered
        alone."""
        macros = '{% import "tables.html" as tables with context %}\n'
        blocks = {"title": self.title, "body": macros + self.head, "live": macros + self.live}
        return '{% extends "layout.html" %}' + "".join(
            f"{{% block {name} %}}{text}{{% endblock %}}" for name, text in blocks.items()
        )
