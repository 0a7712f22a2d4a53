-- KEYS: the names of all tasks. ARGV: when the task was created, its name, ms that are left, how many names are kept.
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[4]))
keep_for(KEYS[1], ARGV[3])
