-- KEYS: session and what goes with it. ARGV: now, principal (empty: known already), version of the caller's copy (or empty).
-- The record; or only when it was used last, if the copy is current; or nothing.
local now = now_s(ARGV[1])
if not is_live(KEYS[1], now) then return false end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'principal') ~= ARGV[2] then return false end
local used = use(KEYS, now, true)
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'version') == ARGV[3] then return used end
return redis.call('HGETALL', KEYS[1])
