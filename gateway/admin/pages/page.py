"""Define what a console page consists of (`ConsolePage`). The modules of `gateway.admin.pages` that are named after a
page define it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from gateway.admin.query_types import DayHours
from gateway.admin.verb_handlers import Operations
from transports.inbound.http_requests_and_responses import read_body

BASE_URL: Final = "gateway.base_url"
"""The key in `request.scope` of the gateway's base URL, as the browser knows it."""

OPERATOR: Final = "gateway.operator"
"""The key in `request.scope` of the name of the operator who looks at the page."""

_MAX_FORM_BYTES: Final = 16 << 10

Facts = Callable[[Operations, Request], Awaitable[dict[str, Any]]]
"""A function that returns the variables of a page's template. It may raise the errors of `Operators`; the console then
shows an error page."""

Action = Callable[[Operations, Request, str], Awaitable[str | dict[str, Any]]]
"""A function that carries out a form for an operator, whose name is the last argument. It returns the path of the next
page. If the page itself shows the outcome, it returns the template's variables; images may then come from servers. It
may raise the errors of `Operators`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A page of the console: its route, its data and its templates."""

    path: str
    """The route, which begins with `/admin`. Path parameters are in `request.path_params`."""
    facts: Facts
    """Returns the variables of the templates. Called again every few seconds while the page is open."""
    title: str
    """The Jinja template of the title."""
    head: str = ""
    """The Jinja template of the upper part of the page, rendered once. `tables` has the macros of `tables.html`."""
    live: str
    """The Jinja template of the part below `head`, with the same `tables`. It is rendered again with new facts, and
    replaced in the browser."""
    label: str = ""
    """The name in the navigation; empty for a page that the navigation does not list."""
    position: int = 0
    """The place in the navigation, the lowest first."""
    shortcut: str = ""
    """The letter that opens the page after `g`; empty for none."""
    icon: str = ""
    """The icon beside the label, as an SVG path of 16 by 16 units, drawn as lines."""
    actions: Mapping[str, Action] = field(default_factory=dict)
    """The functions that carry out the page's forms, by the route of their POST, which begins with `/admin`."""
    is_live: bool = True
    """False if the open page is never updated."""

    @property
    def template(self) -> str:
        """Return the Jinja template of the whole page, made of `title`, `head` and `live`. The blocks of `head` and
        `live` each import the macros of `tables.html`, because `live` is also rendered alone."""
        macros = '{% import "tables.html" as tables with context %}\n'
        blocks = {"title": self.title, "body": macros + self.head, "live": macros + self.live}
        return '{% extends "layout.html" %}' + "".join(
            f"{{% block {name} %}}{text}{{% endblock %}}" for name, text in blocks.items()
        )


async def posted_form(request: Request) -> list[tuple[str, str]]:
    """Return the names and values in a form. Raises `Refused` for a form that is too large."""
    body = await read_body(request.receive, request.headers, _MAX_FORM_BYTES)
    return parse_qsl((body or b"").decode("utf-8", "replace"), keep_blank_values=True)


def hours_of(request: Request) -> DayHours:
    """Return the hours of the day to which the operator restricts a list: those in the request's query, from the fields
    of the macro `hours`. Raises `OperatorError` if they are invalid."""
    given = request.query_params
    return DayHours(since=given.get("from", ""), until=given.get("to", ""), zone=given.get("zone", ""))
