-- KEYS: session, events, log. ARGV: most events, most bytes, nonce of the numbers, fallback ms, topic, and for each event its
-- number, stream, frame, and how it ends the stream. Numbers that are not above the last one are left out. A request is no
-- event: it follows the event that it is kept with, under the same number.
-- The server may have lost the log since the numbers were reserved, or what was reserved last (a failover).
local last, highest = redis.call('HGET', KEYS[3], 'last'), ARGV[#ARGV - 3]
if not last then redis.call('HSET', KEYS[3], 'nonce', ARGV[3]) end
if tonumber(highest) > tonumber(last or '0') then redis.call('HSET', KEYS[3], 'last', highest) end
local added, is_added = 0, false
for i = 6, #ARGV, 4 do
  local stream, frame, ends = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if ends == '3' then
    if is_added then keep_request(KEYS[3], stream, frame, ARGV[2]) end
  else
    local entry = redis.pcall('XADD', KEYS[2], ARGV[i] .. '-0', 's', stream, 'f', frame, 'e', ends)
    is_added = type(entry) ~= 'table'
    if is_added then
      added = added + #frame
      if ends ~= '' then take_request(KEYS[3], stream) end
    elseif not string.find(entry.err, 'equal or smaller', 1, true) then
      return entry
    end
  end
end
logged(KEYS, added, ARGV)
return 1
