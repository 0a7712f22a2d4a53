-- End a session: delete all of its keys.
-- KEYS: 1 last status, 2 session record, then the other keys of the session.
-- ARGV: 1 now, 2 lifetime of the last status in ms.
-- Returns: 1 to the caller that has ended the session; 0: it was not live.
-- Race: of several callers, only one gets 1. The last status lives until the index has recorded it: until then,
-- `settle` takes "ended" from it, and does not report the session as expired.
if not is_live(KEYS[2], now_s(ARGV[1])) then return 0 end
redis.call('DEL', unpack(KEYS, 2))
redis.call('SET', KEYS[1], 'ended', 'PX', ARGV[2])
return 1
