-- Replace a task by its next version.
-- KEYS: 1 task, 2 ids of the tasks of its session.
-- ARGV: 1 version that the caller has read, 2 head, 3 body, 4 lifetime in ms.
-- Returns: 1; 0: the task is unknown, or has another version.
-- Race: of several callers that have read one version, only the first succeeds.
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', tonumber(ARGV[1]) + 1, 'head', ARGV[2], 'body', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
keep_for(KEYS[2], ARGV[4])
return 1
