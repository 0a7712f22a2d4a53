-- KEYS: a task, the ids of its session's tasks. ARGV: the version that is replaced, the next head and body, ms that are left.
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', tonumber(ARGV[1]) + 1, 'head', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
keep_for(KEYS[2], ARGV[4])
return 1
