-- KEYS: session, log. ARGV: nonce for a new log, how many, fallback ms, the number below those of the epoch, and its last one.
-- The log's nonce, and the first of the new numbers. Nothing if a later epoch has numbers.
local count = tonumber(ARGV[2])
local last = math.max(tonumber(redis.call('HGET', KEYS[2], 'last') or '0'), tonumber(ARGV[4])) + count
if last > tonumber(ARGV[5]) then return false end
if redis.call('HSETNX', KEYS[2], 'nonce', ARGV[1]) == 1 then live_with(KEYS[1], KEYS[2], ARGV[3]) end
redis.call('HSET', KEYS[2], 'last', string.format('%.0f', last))
return {redis.call('HGET', KEYS[2], 'nonce'), last - count + 1}
