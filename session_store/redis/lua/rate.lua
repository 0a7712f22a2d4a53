-- KEYS: one number. ARGV: now, seconds between two, how many at once, how many now. Seconds to wait, as text; 0 when it may happen.
local now, every, burst, times = now_s(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local wait = due - now - every * (burst - times)
if wait > 0.000000001 then return seconds(wait) end
due = due + every * times
redis.call('SET', KEYS[1], seconds(due), 'PX', math.ceil((due - now) * 1000) + 1)
return '0'
