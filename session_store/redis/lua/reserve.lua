-- Reserve numbers for events that are written later. Create a missing log.
-- KEYS: 1 session record, 2 log.
-- ARGV: 1 nonce for a new log, 2 how many numbers, 3 lifetime in ms without a session, 4 number before the first of the
-- caller's epoch, 5 last number of that epoch.
-- Returns: nonce of the log, and the first reserved number; false: an owner of a later epoch has reserved numbers.
-- Race: concurrent callers get different numbers. An owner that has lost the session gets none above those of the next.
local count = tonumber(ARGV[2])
local last = math.max(tonumber(redis.call('HGET', KEYS[2], 'last') or '0'), tonumber(ARGV[4])) + count
if last > tonumber(ARGV[5]) then return false end
if redis.call('HSETNX', KEYS[2], 'nonce', ARGV[1]) == 1 then live_with(KEYS[1], KEYS[2], ARGV[3]) end
redis.call('HSET', KEYS[2], 'last', string.format('%.0f', last))
return {redis.call('HGET', KEYS[2], 'nonce'), last - count + 1}
