-- Store the record of a new session, which expires with the session.
-- KEYS: 1 session record.
-- ARGV: 1 now, 2 time at which the session expires, then fields and values.
-- Returns: 1.
local now = now_s(ARGV[1])
redis.call('HSET', KEYS[1], 'expires_at', ARGV[2], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil((tonumber(ARGV[2]) - now) * 1000)))
return 1
