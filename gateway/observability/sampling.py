"""Which traces are recorded, as the SDK's samplers decide it, known before there is a span.

To begin a span takes OpenTelemetry's SDK 13 µs, also one that it does not record. Its samplers decide by the parent's
flag, and by whether the lower half of the trace id is below a bound. These bounds are found here by asking the sampler.
Without the SDK's packages nothing here is used.
"""

import random
import re
import threading
from typing import Any, Final, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer

__all__ = ["RANDOM_TRACE_ID", "GivenIds", "Sampling", "new_span_id", "new_trace_id"]

RANDOM_TRACE_ID: Final = int(getattr(TraceFlags, "RANDOM_TRACE_ID", 0))
"""The flag of W3C Trace Context level 2 for a trace id that is random; 0 if this version of OpenTelemetry has none."""

_HALF: Final = 64
_LOWER: Final = (1 << _HALF) - 1
_ROOT: Final = r"(?:AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{[0-9.e+-]+\})"
_KNOWN: Final = re.compile(
    rf"{_ROOT}|ParentBased\{{root:{_ROOT}(?:,(?:remote|local)Parent(?:Not)?Sampled:{_ROOT}){{4}}\}}"
)
"""The descriptions of the samplers of OpenTelemetry's specification. Others may look at more."""


class _Sampler(Protocol):
    """The sampler of an SDK."""

    def should_sample(self, parent_context: Context, trace_id: int, name: str) -> Any: ...

    def get_description(self) -> str: ...


class GivenIds(threading.local):
    """Makes the ids of spans, as the SDK's `IdGenerator`: the id of a trace whose sampling was decided is given."""

    def __init__(self) -> None:
        self._given = 0

    def give(self, trace_id: int) -> None:
        """Set the id of the next trace that this thread begins."""
        self._given = trace_id

    def generate_trace_id(self) -> int:
        given, self._given = self._given, 0
        return given or new_trace_id()

    def generate_span_id(self) -> int:
        return new_span_id()

    def is_trace_id_random(self) -> bool:
        return True


def new_trace_id() -> int:
    """Return a random trace id."""
    return random.getrandbits(128) or new_trace_id()


def new_span_id() -> int:
    """Return a random span id."""
    return random.getrandbits(64) or new_span_id()


class Sampling:
    """The decisions of a sampler. `ids` begins traces with given ids; None: the SDK alone knows which ids those get."""

    def __init__(self, sampler: _Sampler, ids: GivenIds | None) -> None:
        self.ids = ids
        self._root = _bound(sampler, None)
        self._children = {flag: _bound(sampler, flag) for flag in (TraceFlags.DEFAULT, TraceFlags.SAMPLED)}

    @classmethod
    def of(cls, tracer: Tracer, ids: GivenIds | None) -> "Sampling | None":
        """Return the decisions for the spans of a tracer; None if they may depend on more than a trace id and a
        flag."""
        sampler = getattr(tracer, "sampler", None)
        if sampler is None or _KNOWN.fullmatch(sampler.get_description()) is None:
            return None
        return cls(sampler, ids)

    def takes_new(self, trace_id: int) -> bool:
        """Return whether a new trace with that id is recorded."""
        return trace_id & _LOWER < self._root

    def takes(self, parent: SpanContext) -> bool:
        """Return whether a request with that parent, in another process, is recorded."""
        return parent.trace_id & _LOWER < self._children[parent.trace_flags & TraceFlags.SAMPLED]


def _bound(sampler: _Sampler, flag: int | None) -> int:
    """Return the least lower half of a trace id that is not sampled. `flag` is that of a parent; None: there is no
    parent."""

    def is_sampled(half: int) -> bool:
        trace_id = 1 << _HALF | half
        context = Context()
        if flag is not None:
            parent = NonRecordingSpan(SpanContext(trace_id, 1, True, TraceFlags(flag)))
            context = trace.set_span_in_context(parent, context)
        return bool(sampler.should_sample(context, trace_id, "").decision.is_sampled())

    low, high = 0, 1 << _HALF
    while low < high:
        half = (low + high) // 2
        low, high = (half + 1, high) if is_sampled(half) else (low, half)
    return low
