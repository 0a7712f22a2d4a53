-- Decide on a session whose deadline in the index has passed: it was used since, or has expired. Delete an expired one.
-- KEYS: 1 last status, 2 session record, then the other keys of the session.
-- ARGV: 1 now, 2 lifetime of the last status in ms.
-- Returns: the time at which a live session expires; "expired" or "ended" for another.
-- Race: a session that is ended by `end` at the same time is not reported as expired. See `end`.
if is_live(KEYS[2], now_s(ARGV[1])) then return redis.call('HGET', KEYS[2], 'expires_at') end
redis.call('DEL', unpack(KEYS, 2))
redis.call('SET', KEYS[1], 'expired', 'PX', ARGV[2], 'NX')
return redis.call('GET', KEYS[1])
