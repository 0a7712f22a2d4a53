-- KEYS: session and what goes with it. ARGV: now.
local now = now_s(ARGV[1])
if not is_live(KEYS[1], now) then return 0 end
use(KEYS, now, false)
return 1
