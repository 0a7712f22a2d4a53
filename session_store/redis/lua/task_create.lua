-- KEYS: a task, the ids of its session's tasks. ARGV: version, head, body, ms that are left, when it was created, its id.
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'head', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6])
keep_for(KEYS[2], ARGV[4])
