-- KEYS: deadlines, ids, statuses (one shard). ARGV: session id, then of one that was kept: now, its status, how many statuses are
-- kept, for how many seconds. 1 for the one caller who removed it.
redis.call('ZREM', KEYS[2], ARGV[1])
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
if removed == 1 and ARGV[2] then
  local now = now_s(ARGV[2])
  redis.call('ZADD', KEYS[3], now, ARGV[1] .. ':' .. ARGV[3])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - tonumber(ARGV[5]))
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - tonumber(ARGV[4]))
  redis.call('EXPIRE', KEYS[3], ARGV[5])
end
return removed
