-- KEYS: session and what goes with it. ARGV: now, principal (empty: an alias has named it). The record, or nothing.
local now = now_s(ARGV[1])
if not is_live(KEYS[1], now) then return false end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'principal') ~= ARGV[2] then return false end
use(KEYS, now, true)
return redis.call('HGETALL', KEYS[1])
