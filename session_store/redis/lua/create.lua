-- KEYS: session. ARGV: now, expires_at, then fields and values of the record.
local now = now_s(ARGV[1])
redis.call('HSET', KEYS[1], 'expires_at', ARGV[2], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], math.max(1, math.ceil((tonumber(ARGV[2]) - now) * 1000)))
return 1
