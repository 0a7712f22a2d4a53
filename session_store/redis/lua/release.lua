-- Give up the ownership of a session. Its epoch stays.
-- KEYS: 1 session record.
-- ARGV: 1 now, 2 replica as JSON, 3 epoch.
-- Returns: 1; 0: the session is not live, or this replica does not own it in that epoch.
-- Race: a replica whose session was claimed meanwhile does not take it from the new owner.
if not is_live(KEYS[1], now_s(ARGV[1])) then return 0 end
local f = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if f[1] ~= ARGV[3] or f[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'owner', '""')
changed(KEYS[1])
return 1
