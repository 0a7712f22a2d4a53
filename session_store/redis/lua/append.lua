-- KEYS: session, events, log. ARGV: stream, frame, most events, most bytes, nonce for a new log, fallback ms, topic,
-- and 1 when the stream ends with this.
local nonce = redis.call('HGET', KEYS[3], 'nonce')
if not nonce then
  nonce = ARGV[5]
  redis.call('HSET', KEYS[3], 'nonce', nonce)
end
local n = redis.call('HINCRBY', KEYS[3], 'last', 1)
redis.call('XADD', KEYS[2], n .. '-0', 's', ARGV[1], 'f', ARGV[2], 'e', ARGV[8])
local size = redis.call('HINCRBY', KEYS[3], 'size', #ARGV[2])
while redis.call('XLEN', KEYS[2]) > tonumber(ARGV[3])
  or (size > tonumber(ARGV[4]) and redis.call('XLEN', KEYS[2]) > 1) do
  local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', KEYS[2], first[1])
  size = redis.call('HINCRBY', KEYS[3], 'size', -#first[2][4])
end
live_with(KEYS[1], KEYS[2], ARGV[6])
live_with(KEYS[1], KEYS[3], ARGV[6])
redis.call('PUBLISH', ARGV[7], 'n')
return nonce .. '-' .. n
