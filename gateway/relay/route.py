"""How a call was sent, for the calls that are sent alike."""

import weakref

import msgspec

from gateway.calls.conversation import Conversation
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
