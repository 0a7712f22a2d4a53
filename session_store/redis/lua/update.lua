-- Set fields of a session's record.
-- KEYS: 1 session record.
-- ARGV: 1 now, 2 version that the record must have, or empty, then fields and values.
-- Returns: the record (field, value, ...); false: the session is not live, or its record has another version, and
-- nothing was changed.
-- Race: concurrent callers set different fields, and none is lost. With a version, only the first of them succeeds.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
if ARGV[2] ~= '' and (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[2] then return false end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
changed(KEYS[1])
return redis.call('HGETALL', KEYS[1])
