"""Show the newest audit events, with filters."""

from collections.abc import Iterable
from typing import Any, Final, get_args

from starlette.requests import Request

from gateway.admin.pages.page import ConsolePage
from gateway.admin.verbs import Operators
from session_store.ports.accounting import EventName

_ROWS: Final = 100
_SHOWN: Final = 1_000
_SEARCHED: Final = 5_000
"""The number of the newest events to which a filter is applied."""

_KINDS: Final[tuple[str, ...]] = get_args(EventName)
_WORDS: Final = ("principal", "tool", "reason", "outcome", "correlation", "client", "workspace", "endpoint")
_GOOD: Final = ("ok", "working", "completed", "cancelled", "")


async def _facts(operators: Operators, request: Request) -> dict[str, Any]:
    given = {name: request.query_params.get(name, "") for name in ("session", "q", "event", "failed")}
    has_filter = any(given[name] for name in ("q", "event", "failed"))
    events = await operators.events(_SEARCHED if has_filter else _SHOWN, given["session"])
    rows = folded(event for event in events if _matches(event, given))
    return {"events": rows[:_ROWS], "is_full": len(rows) > _ROWS, "kinds": _KINDS, **given}


def _matches(event: dict[str, Any], given: dict[str, str]) -> bool:
    if given["event"] and event["event"] != given["event"]:
        return False
    if given["failed"] and event["event"] not in ("refused", "blocked") and event.get("outcome", "") in _GOOD:
        return False
    text = "\n".join(str(event.get(name, "")) for name in _WORDS).lower()
    return all(word in text for word in given["q"].lower().split())


_OWN: Final = frozenset({"at", "took_s", "correlation", "count"})
"""Fields that are ignored when two events are compared."""


def folded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbouring events that are equal into one. `events` come newest first, with `at` in seconds since the
    epoch.

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
<label>Session<input name="session" value="{{ session }}" placeholder="first 8 characters" size="16"></label>
<label>Event<select name="event">
<option value="">all</option>
{% for kind in kinds %}<option value="{{ kind }}"{% if kind == event %} selected{% endif
%}>{{ tables.event_word(kind) }}</option>
{% endfor %}
</select></label>
<label>Outcome<select name="failed">
<option value="">all</option><option value="1"{% if failed %} selected{% endif %}>failed or refused</option>
</select></label>
<button>Find</button>
</form>
""",
    live="""\
<section class="panel" aria-label="Events">
{{ tables.events_table(events, "No event matches." if q or session or event or failed else
    "Nothing has happened yet.") }}
</section>
{% if is_full %}<p class="soft">There are more: these {{ events | length }} rows are the newest. Find older ones by
their words, session, event or outcome.</p>{% endif %}
""",
)
