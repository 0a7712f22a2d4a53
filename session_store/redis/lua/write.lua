-- Write entries of one session to its event log, under reserved numbers in rising order, and wake its followers.
-- KEYS: 1 session record, 2 events, 3 log.
-- ARGV: 1 most events, 2 most bytes, 3 nonce of the reservation, 4 lifetime in ms without a session, 5 topic of
-- followers, then for each entry four values: number, stream, frame, and what the entry is. Empty: an event. '1': it
-- only ends the stream. '2': an event that ends the stream. '3': no event, but the request of the stream. It follows
-- the event that it is kept with, under the same number.
-- Returns: 1, or the error of Redis.
-- Race: an entry whose number is not above the last one is left out, with its request. So a write can be repeated, and
-- a former owner cannot write after the next one. Redis may have lost the log, or the last reservation, in a failover:
-- then the log gets the nonce and the highest number again, so that ids given to clients stay valid.
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
