-- Restart the idle time of a session. This does not confirm it: its client may never come back.
-- KEYS: 1 session record, then the other keys of the session.
-- ARGV: 1 now.
-- Returns: 1; 0: the session is not live.
local now = now_s(ARGV[1])
if not is_live(KEYS[1], now) then return 0 end
use(KEYS, now, false)
return 1
