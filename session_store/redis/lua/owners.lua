-- Return the owners of several sessions.
-- KEYS: session records.
-- ARGV: 1 now.
-- Returns: for each session its epoch and its owner as JSON; false: it is not live.
local now, found = now_s(ARGV[1]), {}
for i, session in ipairs(KEYS) do
  found[i] = is_live(session, now) and redis.call('HMGET', session, 'epoch', 'owner')
end
return found
