-- Delete the kept request of a stream.
-- KEYS: 1 log.
-- ARGV: 1 stream.
-- Returns: the request; false: none is kept.
-- Race: of several callers, only one gets it, so only one sends the call again.
return take_request(KEYS[1], ARGV[1])
