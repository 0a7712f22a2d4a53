-- Add a task to the list of all tasks, for operators, and drop the oldest.
-- KEYS: 1 names of all tasks.
-- ARGV: 1 time of creation, 2 name of the task, 3 its lifetime in ms, 4 most names.
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[4]))
keep_for(KEYS[1], ARGV[3])
