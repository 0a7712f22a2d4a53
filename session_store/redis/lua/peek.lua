-- Return the record of a session. This does not count as use.
-- KEYS: 1 session record.
-- ARGV: 1 now.
-- Returns: the record (field, value, ...); false: the session is not live.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
return redis.call('HGETALL', KEYS[1])
