-- KEYS: session. ARGV: now, replica as JSON, epoch. The new epoch and the owner before, or nothing.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
local f = redis.call('HMGET', KEYS[1], 'epoch', 'owner')
if f[1] ~= ARGV[3] then return false end
redis.call('HSET', KEYS[1], 'epoch', tonumber(ARGV[3]) + 1, 'owner', ARGV[2])
changed(KEYS[1])
return { tonumber(ARGV[3]) + 1, f[2] }
