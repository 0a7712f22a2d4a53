-- Append one entry to the event log of a session under the next number, and wake its followers.
-- KEYS: 1 session record, 2 events, 3 log.
-- ARGV: 1 most events, 2 most bytes, 3 nonce for a new log, 4 lifetime in ms without a session, 5 topic of followers,
-- 6 stream, 7 frame, 8 '1' if the entry only ends the stream, else empty.
-- Returns: the id of the event, NONCE-NUMBER.
-- Race: concurrent callers get different numbers, in the order of the entries.
redis.call('HSETNX', KEYS[3], 'nonce', ARGV[3])
local n = string.format('%.0f', redis.call('HINCRBY', KEYS[3], 'last', 1))
redis.call('XADD', KEYS[2], n .. '-0', 's', ARGV[6], 'f', ARGV[7], 'e', ARGV[8])
if ARGV[8] ~= '' then take_request(KEYS[3], ARGV[6]) end
logged(KEYS, #ARGV[7], ARGV)
return redis.call('HGET', KEYS[3], 'nonce') .. '-' .. n
