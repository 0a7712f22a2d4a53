"""How a call was sent, for the calls that are sent alike."""

import weakref

import msgspec

from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.calls.live_session import live_session_of
from gateway.relay.admission import Admitted
from gateway.relay.admitted_tool import AdmittedTool
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era

__all__ = ["Route"]


class Route:
    """The server, the conversation, and what policy has decided. `named` is the server's own name of what is called;
    None if that is the name in the call."""

    __slots__ = ("_conversation", "admitted", "named", "upstream")

    def __init__(
        self, upstream: ConfiguredUpstream, conversation: Conversation, admitted: Admitted, named: msgspec.Raw | None
    ) -> None:
        self.upstream = upstream
        self.admitted = admitted
        self.named = named
        # A connection that remembers the call does not keep what its session has given up.
        self._conversation = weakref.ref(conversation)

    @property
    def may_stand(self) -> bool:
        """Whether other calls may be sent by it: those of tools."""
        return isinstance(self.admitted, AdmittedTool)

    @property
    def held_conversation(self) -> Conversation | None:
        """The conversation, as long as its session keeps it."""
        return self._conversation()

    def leads_to(self, conversation: Conversation, era: Era) -> bool:
        """Whether another call of a client of that era would still be sent in that conversation of its session, with
        what was decided on the tool."""
        upstream, tool = self.upstream, self.admitted
        return (
            isinstance(tool, AdmittedTool)
            and upstream.era_now(era) is conversation.era
            and upstream.inventory.known("tools/list", conversation) is tool.tools
        )

    def conversation_for(self, call: Call) -> Conversation | None:
        """The conversation for another call of the same tool, whose session's record and caller are the same as well.
        None if a decision on the call might come to another route. Whether the link is open is not asked here.

        Raises:
            UpstreamUnavailable: the session has ended.
        """
        live, upstream, tool = live_session_of(call.exchange), self.upstream, self.admitted
        era = upstream.era_now(call.era)
        if live is None or era is None or not isinstance(tool, AdmittedTool):
            return None
        conversation = upstream.conversation(live, era, call.correlation, call.exchange.caller)
        return conversation if conversation is self._conversation() and self.leads_to(conversation, call.era) else None
