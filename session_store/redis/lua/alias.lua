-- Let an alias name a session, unless it names another one already.
-- KEYS: 1 alias.
-- ARGV: 1 id of the session, 2 lifetime of the alias in ms, 3 id of a session that has ended, or empty.
-- Returns: the id of the session that the alias names now.
-- Race: of several callers that create a session under one alias, the first wins, and the others get its id. A caller
-- that finds that session ended calls again with its id in ARGV 3, and replaces the alias only if nobody else has.
local named = redis.call('GET', KEYS[1])
if named and named ~= ARGV[3] then return named end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
