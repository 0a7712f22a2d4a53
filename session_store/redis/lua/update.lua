-- KEYS: session. ARGV: now, the version that the record must have (or empty), then fields and values.
-- The record afterwards, or nothing.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
if ARGV[2] ~= '' and (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
changed(KEYS[1])
return redis.call('HGETALL', KEYS[1])
