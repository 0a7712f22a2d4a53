-- Hold a name in a set that may have a limited number of names.
-- KEYS: 1 set of names.
-- ARGV: 1 name, 2 most names, 3 least lifetime of the set from now in ms.
-- Returns: an empty list if the name is held, now or before; else all names, and nothing was changed.
-- Race: concurrent callers on all replicas together never exceed the limit.
local key = KEYS[1]
if redis.call('SISMEMBER', key, ARGV[1]) == 0 then
  if redis.call('SCARD', key) >= tonumber(ARGV[2]) then return redis.call('SMEMBERS', key) end
  redis.call('SADD', key, ARGV[1])
end
keep_for(key, ARGV[3])
return {}
