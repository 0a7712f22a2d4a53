-- Run one operation on the state of a session. One script has all of them: each checks first that the session is live,
-- and keeps the count of its bytes (`state_bytes` of the record).
-- KEYS: 1 session record, 2 state.
-- ARGV: 1 now, 2 limit in bytes of the whole state, 3 operation, 4 key (`keys`, `size`: empty), then by operation:
--   get, delete, keys, size: nothing.
--   set: 5 value.
--   increment: 5 number to add.
--   compare_and_set: 5 '1' if a value is expected, 6 that value, 7 '1' to set a value, else delete, 8 that value.
-- Returns: 'ok' and the result; 'gone': the session is not live; 'large' and the size beyond the limit; 'type': the
-- value is no integer; 'range': the sum does not fit 64 bits. After anything but 'ok', nothing was changed.
-- Race: each operation is atomic on all replicas. The state of a session that ends meanwhile is never written.
if not is_live(KEYS[1], now_s(ARGV[1])) then return { 'gone' } end
local most, operation, key = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local present = key ~= '' and redis.call('HGET', KEYS[2], key)

local function count(bytes)
  redis.call('HINCRBY', KEYS[1], 'state_bytes', bytes)
end

local function put(value)
  local more = #value - (present and #present or -#key)
  local total = tonumber(redis.call('HGET', KEYS[1], 'state_bytes') or '0') + more
  if total > most then return { 'large', total } end
  redis.call('HSET', KEYS[2], key, value)
  count(more)
  live_with(KEYS[1], KEYS[2])
  return { 'ok', value }
end

local function drop()
  if present then
    redis.call('HDEL', KEYS[2], key)
    count(-#key - #present)
  end
  return { 'ok', present and 1 or 0 }
end

if operation == 'get' then return { 'ok', present } end
if operation == 'keys' then return { 'ok', redis.call('HKEYS', KEYS[2]) } end
if operation == 'size' then return { 'ok', tonumber(redis.call('HGET', KEYS[1], 'state_bytes') or '0') } end
if operation == 'set' then return put(ARGV[5]) end
if operation == 'delete' then return drop() end
if operation == 'increment' then
  -- Lua's numbers are doubles: Redis adds, and says what does not fit 64 bits.
  local probe = redis.pcall('HINCRBY', KEYS[2], key, ARGV[5])
  if type(probe) == 'table' and probe.err then
    if string.find(probe.err, 'overflow') then return { 'range' } end
    if string.find(probe.err, 'not an integer') then return { 'type' } end
    return probe -- Redis takes no writes
  end
  local sum = redis.call('HGET', KEYS[2], key)
  local more = #sum - (present and #present or -#key)
  local total = tonumber(redis.call('HGET', KEYS[1], 'state_bytes') or '0') + more
  if total > most then
    if present then redis.call('HSET', KEYS[2], key, present) else redis.call('HDEL', KEYS[2], key) end
    return { 'large', total }
  end
  count(more)
  live_with(KEYS[1], KEYS[2])
  return { 'ok', sum }
end
if operation == 'compare_and_set' then
  local expected = ARGV[5] == '1' and ARGV[6] or false
  if present ~= expected then return { 'ok', 0 } end
  local done = ARGV[7] == '1' and put(ARGV[8]) or drop()
  return done[1] == 'ok' and { 'ok', 1 } or done
end
return redis.error_reply('no such operation: ' .. operation)
