-- Add a session to its shard of the index.
-- KEYS: 1 deadlines, 2 ids.
-- ARGV: 1 id of the session, 2 time at which it expires, 3 longest time in ms for which the entry is needed.
-- Returns: 1.
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
keep_for(KEYS[1], ARGV[3])
keep_for(KEYS[2], ARGV[3])
return 1
