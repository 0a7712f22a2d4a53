-- Store a new task, and add it to the tasks of its session.
-- KEYS: 1 task, 2 ids of the tasks of its session.
-- ARGV: 1 version, 2 head, 3 body, 4 lifetime in ms, 5 time of creation, 6 id of the task.
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'head', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6])
keep_for(KEYS[2], ARGV[4])
