-- Make a replica the owner of a session.
-- KEYS: 1 session record.
-- ARGV: 1 now, 2 replica as JSON, 3 epoch that the caller has read, 4 next epoch.
-- Returns: the earlier owner as JSON; false: the session is not live, or has another epoch.
-- Race: of several replicas that have read one epoch, only the first becomes the owner.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
local f = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if f[1] ~= ARGV[3] then return false end
redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'owner', ARGV[2])
changed(KEYS[1])
return f[2]
