-- KEYS: session. ARGV: now, replica as JSON, epoch, the next epoch. The owner before, or nothing.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
local f = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if f[1] ~= ARGV[3] then return false end
redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'owner', ARGV[2])
changed(KEYS[1])
return f[2]
