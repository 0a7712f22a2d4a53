-- Count events under a key, and return how long the last of them has to wait: the generic cell rate algorithm (GCRA).
-- KEYS: 1 time at which the next event is due.
-- ARGV: 1 now, 2 seconds between two events, 3 largest burst, 4 number of events, 5 longest wait in seconds.
-- Returns: seconds to wait, as text. If that is more than the longest wait, nothing was counted.
-- Race: concurrent callers on all replicas together never exceed the rate. Each has its own turn.
local now, every, burst, times, within = now_s(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local wait = seconds(math.max(0, due - now - every * (burst - times)))
if tonumber(wait) > within then return wait end
due = due + every * times
redis.call('SET', KEYS[1], seconds(due), 'PX', math.ceil((due - now) * 1000) + 1)
return wait
