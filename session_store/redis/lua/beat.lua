-- KEYS: lease, lost. ARGV: address, ms. The sessions that others have claimed since the last beat.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local lost = redis.call('LRANGE', KEYS[2], 0, -1)
redis.call('DEL', KEYS[2])
return lost
