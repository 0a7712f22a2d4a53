-- KEYS: session, log. ARGV: nonce for a new log, how many, fallback ms. The log's nonce, and the first of the new numbers.
if redis.call('HSETNX', KEYS[2], 'nonce', ARGV[1]) == 1 then live_with(KEYS[1], KEYS[2], ARGV[3]) end
local last = redis.call('HINCRBY', KEYS[2], 'last', ARGV[2])
return {redis.call('HGET', KEYS[2], 'nonce'), last - ARGV[2] + 1}
