"""A failover of Redis that has forgotten the last claims."""

from tests.cluster.failovers import failovers
from tests.requirements import requirement


@requirement("rep.failover", "rep.redis")
def test_a_failover_that_forgot_claims_leaves_one_owner_and_the_client_is_told() -> None:
    findings = failovers(1)
    assert findings.is_good, findings
