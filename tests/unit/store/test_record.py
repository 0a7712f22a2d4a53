"""Session records keep every field, and records of older versions are read."""

import json

from session_store import Context, Provenance
from session_store.record import from_fields, to_fields
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement


@requirement("wall.provenance")
def test_records_keep_where_facts_come_from_and_old_ones_are_read_as_announced() -> None:
    context = Context(workspace="w", provenance=Provenance(workspace="authenticated"))
    record = to_fields(a_session(FakeClock(), context=context))
    assert from_fields(record).context.provenance.workspace == "authenticated"
    old = json.loads(record["context"])
    del old["provenance"]
    assert from_fields({**record, "context": json.dumps(old).encode()}).context.provenance.workspace == "announced"
