-- Record which configuration a replica has, and number configurations in the order in which replicas first had them.
-- KEYS: 1 configurations: `d:` and a digest → its number, `r:` and a replica → its number and the end of its hold.
-- ARGV: 1 now, 2 replica, 3 digest, 4 number that the replica has (0: it has just started), 5 '1' if its configuration
-- has changed since it got that number, 6 length of the hold in seconds (0: end it, and only read), 7 seconds for which
-- the key is kept without a call.
-- Returns: the replica's number, the greatest number that is held, and the replicas that hold that one.
-- Race: two replicas that get the same new configuration at once get the same number: the second finds its digest.
local KEPT = 64  -- numbers of earlier configurations
local now, replica, digest, number = now_s(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local is_edited, hold_s = ARGV[5] == '1', tonumber(ARGV[6])
local held, digests, newest, last = {}, {}, 0, number
local is_given = false  -- the number belongs to another configuration
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  local kind, name = string.sub(found[i], 1, 2), string.sub(found[i], 3)
  local its, till = string.match(found[i + 1], '^(%d+) ?(.*)$')
  its = tonumber(its)
  if kind == 'd:' then
    digests[name] = its
    last = math.max(last, its)
    is_given = is_given or (its == number and name ~= digest)
  elseif name == replica or tonumber(till) <= now then
    redis.call('HDEL', KEYS[1], found[i])
  else
    held[name] = its
    newest = math.max(newest, its)
  end
end
local own = last + 1
if digests[digest] and not (is_edited and number >= newest) then
  own = digests[digest]  -- an edit of the newest one, to what was before, gets a new number
elseif number > 0 and not digests[digest] and not is_edited and not is_given then
  own = number  -- the store has lost it
end
if hold_s > 0 then
  redis.call('HSET', KEYS[1], 'd:' .. digest, own, 'r:' .. replica, own .. ' ' .. seconds(now + hold_s))
  redis.call('EXPIRE', KEYS[1], ARGV[7])
  for name, its in pairs(digests) do
    if its < own - KEPT and name ~= digest then redis.call('HDEL', KEYS[1], 'd:' .. name) end
  end
  held[replica] = own
  newest = math.max(newest, own)
end
local answer = {own, newest}
for name, its in pairs(held) do
  if its == newest then answer[#answer + 1] = name end
end
return answer
