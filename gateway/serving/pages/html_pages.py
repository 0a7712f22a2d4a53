"""Make small HTML pages for people from the folder `templates`, with their style sheet in them, without scripts."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jinja2 import Environment  # with the first page

_STYLE: Final = (files("gateway.serving") / "templates" / "page.css").read_text(encoding="utf-8")
_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def page_headers(*directives: str, referrer: str) -> dict[str, str]:
    """Return the response headers of a page. `directives`: additions to its Content-Security-Policy. `referrer`: the
    value of its Referrer-Policy."""
    policy = ("default-src 'none'", f"style-src 'sha256-{_DIGEST}'", *directives)
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "; ".join((*policy, "frame-ancestors 'none'", "base-uri 'none'")),
        "Referrer-Policy": referrer,
        "X-Content-Type-Options": "nosniff",
    }


def rendered(template: str, **facts: Any) -> str:
    """Return a page as HTML: the template, with `facts` as its variables."""
    return _environment().get_template(template).render(style=_STYLE, **facts)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # with the first page

    loader = PackageLoader("gateway.serving")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
