"""A key is found by its digest, and by nothing else."""

import hashlib

from gateway.identity.key_digests import KeyDigests, digest_of


def test_the_holder_of_a_key_is_found() -> None:
    keys = KeyDigests([("alice", digest_of("a")), ("bob", digest_of("b")), ("bob", digest_of("new"))])
    assert len(keys) == 3
    assert keys.holder("a") == "alice" and keys.holder("b") == keys.holder("new") == "bob"
    assert keys.holder("") is None and keys.holder(digest_of("a")) is None
    assert digest_of("\udcff") == hashlib.sha256(b"\xff").hexdigest(), "a key of bytes that are no UTF-8"
    assert not KeyDigests[str]([]) and KeyDigests[str]([]).holder("a") is None
