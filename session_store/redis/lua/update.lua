-- KEYS: session. ARGV: now, then fields and values. The record afterwards, or nothing.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
changed(KEYS[1])
return redis.call('HGETALL', KEYS[1])
