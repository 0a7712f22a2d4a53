-- KEYS: status, session and what goes with it. ARGV: now, ms the status is kept.
-- The deadline of a session that lives on; else what became of it, and nothing of it is left.
if is_live(KEYS[2], now_s(ARGV[1])) then return redis.call('HGET', KEYS[2], 'expires_at') end
redis.call('DEL', unpack(KEYS, 2))
redis.call('SET', KEYS[1], 'expired', 'PX', ARGV[2], 'NX')
return redis.call('GET', KEYS[1])
