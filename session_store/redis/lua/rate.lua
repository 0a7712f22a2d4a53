-- KEYS: one number. ARGV: now, seconds between two, how many at once. Seconds to wait, as text; 0 when it may happen.
local now, every, burst = now_s(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local wait = due - now - every * (burst - 1)
if wait > 0.000000001 then return seconds(wait) end
redis.call('SET', KEYS[1], seconds(due + every), 'PX', math.ceil((due + every - now) * 1000) + 1)
return '0'
