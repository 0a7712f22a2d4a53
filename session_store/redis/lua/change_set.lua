-- Add a name to a field of a session that is a sorted set of names, and remove one.
-- KEYS: 1 session record.
-- ARGV: 1 now, 2 field, 3 name to add, or empty, 4 name to remove, or empty.
-- Returns: the record (field, value, ...); false: the session is not live.
-- Race: concurrent callers change one set, and no change is lost.
if not is_live(KEYS[1], now_s(ARGV[1])) then return false end
local names = {}
for _, name in ipairs(cjson.decode(redis.call('HGET', KEYS[1], ARGV[2]) or '[]')) do
  if name ~= ARGV[3] and name ~= ARGV[4] then names[#names + 1] = name end
end
if ARGV[3] ~= '' then names[#names + 1] = ARGV[3] end
table.sort(names)
redis.call('HSET', KEYS[1], ARGV[2], #names > 0 and cjson.encode(names) or '[]')
changed(KEYS[1])
return redis.call('HGETALL', KEYS[1])
