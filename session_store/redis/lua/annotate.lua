-- Set and remove entries of a session's metadata.
-- KEYS: 1 session record.
-- ARGV: 1 now, 2 limit in bytes, 3 number n of entries to set, then n pairs of name and value, then names to remove.
-- Returns: the record (field, value, ...); false: the session is not live; a number: the size beyond the limit, and
-- nothing was changed.
-- Race: concurrent callers change different entries, and none is lost.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
local present = cjson.decode(redis.call('HGET', KEYS[1], 'metadata') or '{}')
local n = tonumber(ARGV[3])
for i = 4, 3 + 2 * n, 2 do present[ARGV[i]] = ARGV[i + 1] end
for i = 4 + 2 * n, #ARGV do present[ARGV[i]] = nil end
local size = 0
for name, value in pairs(present) do size = size + #name + #value end
if size > tonumber(ARGV[2]) then return size end
redis.call('HSET', KEYS[1], 'metadata', cjson.encode(present))
changed(KEYS[1])
return redis.call('HGETALL', KEYS[1])
