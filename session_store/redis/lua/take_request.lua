-- KEYS: log. ARGV: stream. The request that was kept of it.
return take_request(KEYS[1], ARGV[1])
