-- Replace a value if it is the one that was read.
-- KEYS: 1 value.
-- ARGV: 1 value before, 2 value after (empty: there is none), 3 lifetime from now in ms.
-- Returns: 1 if it was replaced; 0 if it was another.
-- Race: of concurrent callers on all replicas that have read the same value, one replaces it.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
