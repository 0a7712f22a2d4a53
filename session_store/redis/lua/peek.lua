-- KEYS: session. ARGV: now. The record, or nothing.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
return redis.call('HGETALL', KEYS[1])
