"""Show the newest audit events, with filters."""

from collections.abc import Iterable
from typing import Any, Final, get_args

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage, hours_of
from gateway.admin.query_types import DayHours, has_words, is_part
from gateway.admin.verb_handlers import Operations
from session_store.ports.audit import EventName
from session_store.session import redact

_ROWS: Final = 100
_SHOWN: Final = 1_000
_SEARCHED: Final = 5_000
"""The number of the newest events to which a filter is applied."""

_KINDS: Final[tuple[str, ...]] = get_args(EventName)
_WORDS: Final = ("principal", "tool", "reason", "why", "outcome", "correlation", "client", "workspace", "endpoint")
_FILTERS: Final = ("q", "session", "principal", "server", "tool", "event", "failed")
_GOOD: Final = ("ok", "working", "completed", "cancelled", "")


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    given = {name: request.query_params.get(name, "") for name in _FILTERS}
    hours = hours_of(request)
    has_filter = any(given.values()) or not hours.are_all
    events = await operators.events(_SEARCHED if has_filter else _SHOWN)
    rows = folded(event for event in events if _matches(event, given, hours))
    audit = operators.settings.gateway.audit
    return {
        "events": rows[:_ROWS],
        "is_full": len(rows) > _ROWS,
        "kinds": _KINDS,
        "has_filter": has_filter,
        "hours": hours,
        "searched": len(events) if len(events) == _SEARCHED else 0,
        "oldest": events[-1]["at"] if events else 0.0,
        "has_calls": audit.calls,
        "is_kept": "store" in audit.to,
        **given,
    }


def _matches(event: dict[str, Any], given: dict[str, str], hours: DayHours) -> bool:
    if given["event"] and event["event"] != given["event"]:
        return False
    if given["failed"] and event["event"] not in ("refused", "blocked") and event.get("outcome", "") in _GOOD:
        return False
    server, _, tool = event.get("tool", "").partition("/")
    of_endpoint = event.get("endpoint", "").removeprefix("/servers/").removesuffix("/mcp")
    return (
        hours.meet(event["at"], event["at"])
        and is_part(redact(given["session"]), event.get("session", ""))
        and is_part(given["principal"], event.get("principal", ""))
        and (is_part(given["server"], server) or is_part(given["server"], of_endpoint))
        and is_part(given["tool"], tool)
        and has_words(given["q"], (str(event.get(name, "")) for name in _WORDS))
    )


_OWN: Final = frozenset({"at", "took_s", "correlation", "count"})
"""Fields that are ignored when two events are compared."""


def folded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge audit events that follow each other and are equal but for the fields `_OWN`, so that the page shows one row
    for them. `events` come newest first, with `at` in seconds since the epoch.

    The merged event has the newest `at`, the sum of `count`, the longest `took_s`, and the oldest `at` as `since`.
    """
    rows: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    for event in events:
        kind = {name: value for name, value in event.items() if name not in _OWN}
        if kind != last:
            rows.append(event)
            last = kind
            continue
        row = rows[-1]
        rows[-1] = row | {"count": row["count"] + event["count"], "since": event["at"]}
        if "took_s" in row or "took_s" in event:
            rows[-1]["took_s"] = max(row.get("took_s", 0.0), event.get("took_s", 0.0))
    return rows


PAGE: Final = ConsolePage(
    path="/admin/events",
    label="Events",
    position=7,
    shortcut="e",
    icon="M1.5 8h3l2-5 3 10 2-5h3",
    facts=_facts,
    title="Events",
    head="""\
<div class="head"><div><h1>Events</h1><p>The audit trail of all replicas, newest first.</p></div></div>
<form class="search" role="search">
<label class="grow">Find<input name="q" type="search" value="{{ q }}"
placeholder="principal, tool, reason, correlation …"></label>
<label>Event<select name="event">
<option value="">all</option>
{% for kind in kinds %}<option value="{{ kind }}"{% if kind == event %} selected{% endif
%}>{{ tables.event_word(kind) }}</option>
{% endfor %}
</select></label>
{{ tables.failed_choice(failed) }}
<button>Find</button>
<span class="break"></span>
{{ tables.parts([("session", session), ("principal", principal), ("server", server), ("tool", tool)]) }}
{{ tables.hours(hours) }}
</form>
""",
    live="""\
<section class="panel" aria-label="Events">
{{ tables.events_table(events, "No event matches." if has_filter else
    "Nothing has happened yet.") }}
</section>
{% if is_full %}<p class="soft">There are more: these {{ events | length }} rows are the newest. Find older ones by
their words, names, time, event or outcome.</p>{% endif %}
{% if has_filter and searched %}<p class="soft">Searched were the newest {{ "{:,}".format(searched) }} events, back to
{{ oldest | moment }}.</p>{% endif %}
{% if not has_calls %}<p class="soft">Calls are not among the events, as <code>gateway.audit.calls</code> is off. What
failed in them is with the <a href="{{ root }}/admin/sessions?when=day&amp;failed=true">sessions of the last
day</a>.</p>{% endif %}
{% if not is_kept %}<p class="notice" role="status">This replica keeps no events in the store
(<code>gateway.audit.to</code>), so those that it has recorded are not here.</p>{% endif %}
""",
)
