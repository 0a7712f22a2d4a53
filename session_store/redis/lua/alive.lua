-- KEYS: session. ARGV: now.
return is_live(KEYS[1], now_s(ARGV[1])) and 1 or 0
