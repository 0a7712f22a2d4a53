-- KEYS: session, state. ARGV: now, most bytes, operation, key, then what the operation needs.
-- One script for all: each of them asks first whether the session lives, and keeps count of its bytes.
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
    return { string.find(probe.err, 'overflow') and 'range' or 'type' }
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
