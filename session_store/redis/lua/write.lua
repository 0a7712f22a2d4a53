-- KEYS: session, events, log. ARGV: most events, most bytes, nonce of the numbers, fallback ms, topic, and for each event its
-- number, stream, frame, and how it ends the stream. Numbers that are not above the last one are left out.
-- The server may have lost the log since the numbers were reserved, or what was reserved last (a failover).
local last, highest = redis.call('HGET', KEYS[3], 'last'), ARGV[#ARGV - 3]
if not last then redis.call('HSET', KEYS[3], 'nonce', ARGV[3]) end
if tonumber(highest) > tonumber(last or '0') then redis.call('HSET', KEYS[3], 'last', highest) end
local added = 0
for i = 6, #ARGV, 4 do
  local entry = redis.pcall('XADD', KEYS[2], ARGV[i] .. '-0', 's', ARGV[i + 1], 'f', ARGV[i + 2], 'e', ARGV[i + 3])
  if type(entry) ~= 'table' then
    added = added + #ARGV[i + 2]
  elseif not string.find(entry.err, 'equal or smaller', 1, true) then
    return entry
  end
end
logged(KEYS, added, ARGV)
return 1
