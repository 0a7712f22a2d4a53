-- Remove a session from its shard of the index. If it has ended, record how.
-- KEYS: 1 deadlines, 2 ids, 3 last statuses.
-- ARGV: 1 id of the session, and for one that has ended: 2 now, 3 last status, 4 most statuses, 5 their lifetime in
-- seconds.
-- Returns: 1 to the caller that has removed it; 0: another one had.
-- Race: of several replicas that sweep at once, only one gets 1, and reports the end of the session.
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
