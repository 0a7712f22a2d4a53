-- KEYS: session. ARGV: now, field, name to put in, name to take out (or empty). The record afterwards, or nothing.
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
