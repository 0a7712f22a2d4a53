-- Tell whether a session is live.
-- KEYS: 1 session record.
-- ARGV: 1 now.
-- Returns: 1 or 0.
return is_live(KEYS[1], now_s(ARGV[1])) and 1 or 0
