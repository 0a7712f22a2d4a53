-- KEYS: one number. ARGV: now, seconds between two, how many at once, how many now, the most seconds to wait. Seconds to wait, as text.
local now, every, burst, times, within = now_s(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local wait = seconds(math.max(0, due - now - every * (burst - times)))
if tonumber(wait) > within then return wait end
due = due + every * times
redis.call('SET', KEYS[1], seconds(due), 'PX', math.ceil((due - now) * 1000) + 1)
return wait
