-- KEYS: P S Y W U. ARGV: delay in µs, producer, its number of the first record, count, for how many
-- ms its name is kept at least, blobs...
local P, S, Y, W, U = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local head = call('HMGET', P, 'l', 'v', 'm', 'y', 'n', 'c')
if not head[1] then return 'nopart' end
local who, first, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local state = who ~= '' and call('HGET', W, who) or nil
-- What a producer sent, newest first: 'first:count:id;...'. A repetition counts itself, so that
-- there is a write for WAIT.
if state then
  local f, c = match(state, '^(%d+):(%d+):')
  local expected = f + c
  if first > expected then return 'gap ' .. format('%.0f', expected) end
  if first < expected then
    local oldest
    for bf, bc, id in string.gmatch(state, '(%d+):(%d+):([^;]*);') do
      oldest = tonumber(bf)
      if oldest == first then
        if tonumber(bc) ~= count then return 'borders' end
        call('HINCRBY', W, '', 1)
        return { keep_time(P, head[6]), 1, id }
      end
    end
    if first + count > oldest then return 'borders' end
    call('HINCRBY', W, '', 1)
    return { keep_time(P, head[6]), 1, '' }
  end
end
local now, delay, id = keep_time(P, head[6]), tonumber(ARGV[1]), ''
if delay == 0 then
  id = write_blobs(P, S, now, head, ARGV, 6)
else
  local ms, n, largest = later_ms(now, delay), tonumber(head[5]), tonumber(head[3])
  for i = 6, #ARGV do
    -- An entry is numbered by its last message.
    n = n + string.byte(ARGV[i])
    call('ZADD', Y, ms, format('%016.0f', n) .. ARGV[i])
    if #ARGV[i] > largest then largest = #ARGV[i] end
  end
  call('HSET', P, 'y', head[4] + count, 'n', n, 'v', head[2] + 1, 'm', largest)
end
if who ~= '' then
  local sent = format('%s:%s:%s;', ARGV[3], ARGV[4], id) .. (state or '')
  local at = 0
  for _ = 1, WINDOW do at = string.find(sent, ';', at + 1, true) or #sent end
  call('HSET', W, who, string.sub(sent, 1, at))
  call('ZADD', U, math.floor(now / 1000) + tonumber(ARGV[5]), who)
  if not state and call('ZCARD', U) > PRODUCERS then call('HDEL', W, call('ZPOPMIN', U)[1]) end
end
return { now, 0, id }
