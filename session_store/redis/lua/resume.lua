-- Return the record of a session, and record its use by a client: its idle time begins again, and it is confirmed.
-- KEYS: 1 session record, then the other keys of the session.
-- ARGV: 1 now, 2 principal as JSON (empty: not checked), 3 version of the caller's copy of the record, or empty.
-- Returns: the record (field, value, ...); only the time of the use, as text, if the copy is current; false: the
-- session is not live, or of another principal, and nothing was changed.
-- Race: a session cannot expire between the check and the use.
local now = now_s(ARGV[1])
if not is_live(KEYS[1], now) then return false end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'principal') ~= ARGV[2] then return false end
local used = use(KEYS, now, true)
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'version') == ARGV[3] then return used end
return redis.call('HGETALL', KEYS[1])
