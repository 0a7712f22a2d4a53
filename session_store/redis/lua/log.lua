-- KEYS: session, log. ARGV: nonce for a new log, fallback ms, stream. The log's nonce, and how far the stream was given.
if redis.call('HSETNX', KEYS[2], 'nonce', ARGV[1]) == 1 then live_with(KEYS[1], KEYS[2], ARGV[2]) end
return redis.call('HMGET', KEYS[2], 'nonce', 'd:' .. ARGV[3])
