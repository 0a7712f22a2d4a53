-- KEYS: facts and entries of a timeline. ARGV: facts as JSON, '1' if they replace those that are known, calls, failed, how it ended,
-- when, now, how many entries are kept, how many bytes of them, for how many ms, then entries. The facts count the bytes.
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'facts', ARGV[1]) else redis.call('HSETNX', KEYS[1], 'facts', ARGV[1]) end
redis.call('HINCRBY', KEYS[1], 'calls', ARGV[3])
redis.call('HINCRBY', KEYS[1], 'failed', ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'ended', ARGV[5], 'ended_at', ARGV[6]) end
redis.call('HSET', KEYS[1], 'updated_at', ARGV[7])
local bytes = tonumber(redis.call('HGET', KEYS[1], 'bytes') or 0)
for i = 11, #ARGV do
  redis.call('RPUSH', KEYS[2], ARGV[i])
  bytes = bytes + #ARGV[i]
end
local length = redis.call('LLEN', KEYS[2])
while length > tonumber(ARGV[8]) or (bytes > tonumber(ARGV[9]) and length > 0) do
  bytes = bytes - #redis.call('LPOP', KEYS[2])
  length = length - 1
end
redis.call('HSET', KEYS[1], 'bytes', bytes)
redis.call('PEXPIRE', KEYS[1], ARGV[10])
redis.call('PEXPIRE', KEYS[2], ARGV[10])
