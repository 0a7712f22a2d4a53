-- KEYS: one set. ARGV: a name, how many there may be, how long they are kept at least in ms. Nothing once it is in; else all names.
local key = KEYS[1]
if redis.call('SISMEMBER', key, ARGV[1]) == 0 then
  if redis.call('SCARD', key) >= tonumber(ARGV[2]) then return redis.call('SMEMBERS', key) end
  redis.call('SADD', key, ARGV[1])
end
if redis.call('PTTL', key) < tonumber(ARGV[3]) then redis.call('PEXPIRE', key, ARGV[3]) end
return {}
