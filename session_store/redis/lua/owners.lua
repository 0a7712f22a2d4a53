-- KEYS: sessions. ARGV: now. Of each its epoch and owner, or nothing.
local now, found = now_s(ARGV[1]), {}
for i, session in ipairs(KEYS) do
  found[i] = is_live(session, now) and redis.call('HMGET', session, 'epoch', 'owner')
end
return found
