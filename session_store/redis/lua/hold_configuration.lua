-- Record which configuration a replica has, and number configurations in the order in which replicas first had them.
-- KEYS: 1 configurations: `d:` and a digest → its number, `r:` and a replica → its number and the end of its hold.
-- ARGV: 1 now, 2 replica, 3 digest, 4 number that the replica holds (0: it has just started), 5 '1' if its configuration
-- has changed since, 6 length of the hold in seconds, 7 seconds for which the key is kept without a call.
-- Returns: the replica's number, the greatest number that is held, and the replicas that hold that one.
-- Race: two replicas that get the same new configuration at once get the same number: the second finds its digest.
local KEPT = 64  -- numbers of earlier configurations
local now, replica, digest, epoch = now_s(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local is_edited = ARGV[5] == '1'
local held, digests, newest, last, known = {}, {}, 0, epoch, 0
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  local kind, name = string.sub(found[i], 1, 2), string.sub(found[i], 3)
  local number, till = string.match(found[i + 1], '^(%d+) ?(.*)$')
  number = tonumber(number)
  if kind == 'd:' then
    digests[name] = number
    last = math.max(last, number)
  elseif name ~= replica and tonumber(till) <= now then
    redis.call('HDEL', KEYS[1], found[i])
  elseif name ~= replica then
    held[name] = number
    newest = math.max(newest, number)
  end
end
known = digests[digest] or 0
local own = last + 1
if epoch > 0 and known == 0 and not is_edited then
  own = epoch  -- the store has lost it
elseif not (is_edited and epoch >= newest) and known > 0 and (known < newest or known == last) then
  own = known
end
redis.call('HSET', KEYS[1], 'd:' .. digest, own, 'r:' .. replica, own .. ' ' .. seconds(now + tonumber(ARGV[6])))
redis.call('EXPIRE', KEYS[1], ARGV[7])
for name, number in pairs(digests) do
  if number < own - KEPT and name ~= digest then redis.call('HDEL', KEYS[1], 'd:' .. name) end
end
held[replica] = own
newest = math.max(newest, own)
local answer = {own, newest}
for name, number in pairs(held) do
  if number == newest then answer[#answer + 1] = name end
end
return answer
