-- KEYS: alias. ARGV: session id, ms, the id it is known to name in vain (or empty). The id it names now.
local named = redis.call('GET', KEYS[1])
if named and named ~= ARGV[3] then return named end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
