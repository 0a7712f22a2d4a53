-- KEYS: log. ARGV: stream, number. Never backwards, and never a log that is gone.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local given = tonumber(redis.call('HGET', KEYS[1], 'd:' .. ARGV[1]) or '0')
if tonumber(ARGV[2]) > given then redis.call('HSET', KEYS[1], 'd:' .. ARGV[1], ARGV[2]) end
return 1
