-- KEYS: deadlines, ids (one shard). ARGV: session id, expires_at, ms the entry is needed at most.
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
for _, key in ipairs(KEYS) do
  if redis.call('PTTL', key) < tonumber(ARGV[3]) then redis.call('PEXPIRE', key, ARGV[3]) end
end
return 1
