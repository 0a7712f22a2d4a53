-- KEYS: session, events, log. ARGV: most events, most bytes, nonce for a new log, fallback ms, topic, stream, frame, and 1
-- when the stream ends with this.
redis.call('HSETNX', KEYS[3], 'nonce', ARGV[3])
local n = string.format('%.0f', redis.call('HINCRBY', KEYS[3], 'last', 1))
redis.call('XADD', KEYS[2], n .. '-0', 's', ARGV[6], 'f', ARGV[7], 'e', ARGV[8])
if ARGV[8] ~= '' then take_request(KEYS[3], ARGV[6]) end
logged(KEYS, #ARGV[7], ARGV)
return redis.call('HGET', KEYS[3], 'nonce') .. '-' .. n
