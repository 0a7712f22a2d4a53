-- KEYS: facts and entries of a timeline. ARGV: facts as JSON, '1' if they replace those that are known, calls, failed, how it ended,
-- when, now, how many entries are kept, for how many ms, then entries.
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'facts', ARGV[1]) else redis.call('HSETNX', KEYS[1], 'facts', ARGV[1]) end
redis.call('HINCRBY', KEYS[1], 'calls', ARGV[3])
redis.call('HINCRBY', KEYS[1], 'failed', ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'ended', ARGV[5], 'ended_at', ARGV[6]) end
redis.call('HSET', KEYS[1], 'updated_at', ARGV[7])
for i = 10, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
redis.call('LTRIM', KEYS[2], 0 - tonumber(ARGV[8]), -1)
redis.call('PEXPIRE', KEYS[1], ARGV[9])
redis.call('PEXPIRE', KEYS[2], ARGV[9])
