"""The part of the REST interface that shows what happened and how much. Nothing here changes anything."""

from typing import Final, get_args

from starlette.requests import Request

from gateway.admin.figures import RANGES, HistoryView, Range, UsageBy, UsageRow
from gateway.admin.openapi import Operation
from gateway.admin.operators import Operators, PastQuery
from gateway.admin.reports import ServerRow, SessionEnvironment, SessionTimeline
from gateway.admin.rest_parameters import SESSION, choice, number
from session_store import TimelineHead

__all__ = ["INSIGHTS", "InsightRest"]


class InsightRest:
    """The methods of these operations."""

    def __init__(self, operations: Operators) -> None:
        self._insights = operations

    async def timeline(self, request: Request, _: str) -> SessionTimeline:
        return await self._insights.timeline(request.path_params["session"])

    async def environment(self, request: Request, _: str) -> SessionEnvironment:
        return await self._insights.environment(request.path_params["session"])

    async def past_sessions(self, request: Request, _: str) -> list[TimelineHead]:
        given = {name: request.query_params.get(name, "") for name in ("principal", "client")}
        limit = number(request, "limit", 50, 1_000)
        return await self._insights.past_sessions(
            PastQuery(query=request.query_params.get("q", ""), limit=limit, **given)
        )

    async def history(self, request: Request, _: str) -> HistoryView:
        given = request.query_params
        return await self._insights.history(_range(request), given.get("server", ""), given.get("tool", ""))

    async def usage(self, request: Request, _: str) -> list[UsageRow]:
        by: UsageBy = choice(request, "by", {each: each for each in get_args(UsageBy)}, "tool")
        return await self._insights.usage(by, _range(request))

    async def tools(self, request: Request, _: str) -> list[UsageRow]:
        return await self._insights.usage("tool", _range(request))

    async def servers(self, request: Request, _: str) -> list[ServerRow]:
        return await self._insights.servers(_range(request))


def _range(request: Request) -> Range:
    return choice(request, "range", {each: each for each in RANGES}, "15m")


_RANGE: Final = ("range", "query", f"How far to look back: {', '.join(RANGES)} (15m by default)")
INSIGHTS: Final = (
    Operation(
        method="GET",
        path="/sessions/{session}/timeline",
        summary="What happened in a session that is live or has ended in the last day, in order of time",
        work=InsightRest.timeline,
        gives=SessionTimeline,
        takes=(SESSION,),
    ),
    Operation(
        method="GET",
        path="/sessions/{session}/environment",
        summary="What the servers of a live session were given (no secret is shown), and why it sees what it sees",
        work=InsightRest.environment,
        gives=SessionEnvironment,
        takes=(SESSION,),
    ),
    Operation(
        method="GET",
        path="/timelines",
        summary="Sessions of the last day, live and ended, those that were used last first, without their entries",
        work=InsightRest.past_sessions,
        gives=list[TimelineHead],
        takes=(
            ("q", "query", "Words to find in id, principal, client, workspace, endpoint, era, and how it ended"),
            ("principal", "query", "Of this principal only, as listed"),
            ("client", "query", "Of clients with this name only"),
            ("limit", "query", "Maximum number of items: 50 by default, at most 1000"),
        ),
    ),
    Operation(
        method="GET",
        path="/history",
        summary="Calls, failures, durations and live sessions of all replicas together, step by step",
        work=InsightRest.history,
        gives=HistoryView,
        takes=(
            _RANGE,
            ("server", "query", "Calls of this server only"),
            ("tool", "query", "Calls of this tool or method only"),
        ),
    ),
    Operation(
        method="GET",
        path="/usage",
        summary="Who or what was used how much in a range, the most calls first",
        work=InsightRest.usage,
        gives=list[UsageRow],
        takes=(("by", "query", f"{', '.join(get_args(UsageBy))} (tool by default)"), _RANGE),
    ),
    Operation(
        method="GET",
        path="/tools",
        summary="Calls, failures and durations of each tool in a range, the most calls first",
        work=InsightRest.tools,
        gives=list[UsageRow],
        takes=(_RANGE,),
    ),
    Operation(
        method="GET",
        path="/servers",
        summary="The configured servers on all replicas together: state, starts, processes, last words, use by tool",
        work=InsightRest.servers,
        gives=list[ServerRow],
        takes=(_RANGE,),
    ),
)
