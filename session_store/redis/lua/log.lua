-- Return the nonce of a session's log, and how far one of its streams was delivered. Create a missing log.
-- KEYS: 1 session record, 2 log.
-- ARGV: 1 nonce for a new log, 2 lifetime in ms without a session, 3 stream.
-- Returns: nonce, and the number of the last delivered event (false: none).
-- Race: concurrent callers all get the nonce of the first.
if redis.call('HSETNX', KEYS[2], 'nonce', ARGV[1]) == 1 then live_with(KEYS[1], KEYS[2], ARGV[2]) end
return redis.call('HMGET', KEYS[2], 'nonce', 'd:' .. ARGV[3])
