-- KEYS: session. ARGV: now, replica as JSON, epoch.
if not is_live(KEYS[1], now_s(ARGV[1])) then return 0 end
local f = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if f[1] ~= ARGV[3] or f[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'owner', '""')
changed(KEYS[1])
return 1
