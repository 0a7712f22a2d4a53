-- KEYS: a task, the ids of its session's tasks. ARGV: version, record, ms that are left, when it was created, its id.
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'record', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[5])
keep_for(KEYS[2], ARGV[3])
