-- Add entries to the timeline of a session, and drop the oldest beyond the limits.
-- KEYS: 1 facts (with the counts of calls and of bytes), 2 entries.
-- ARGV: 1 facts as JSON, 2 '1' if they replace the stored ones, 3 calls to add, 4 failed calls to add, 5 how the
-- session ended, or empty, 6 when, 7 now, 8 most entries, 9 most bytes of entries, 10 lifetime in ms, then entries as
-- JSON.
-- Race: parts from several replicas are all kept, in the order in which they come.
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
