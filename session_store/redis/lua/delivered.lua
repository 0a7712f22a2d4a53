-- Record that the client of a stream has received an event.
-- KEYS: 1 log.
-- ARGV: 1 stream, 2 number of the event.
-- Returns: 1; 0: there is no log.
-- Race: a late call with a smaller number changes nothing. A call after the session's end does not create the log anew.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local given = tonumber(redis.call('HGET', KEYS[1], 'd:' .. ARGV[1]) or '0')
if tonumber(ARGV[2]) > given then redis.call('HSET', KEYS[1], 'd:' .. ARGV[1], ARGV[2]) end
return 1
