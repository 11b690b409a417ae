-- KEYS: P S Y. ARGV: time and number of a delayed message; 'cancel' or 'deliver'. P keeps the
-- messages that were cancelled last in 'dc', ' ms-number ms-number ', and in 'df' the latest time
-- of those that it forgot.
local P, S, Y = KEYS[1], KEYS[2], KEYS[3]
local head = call('HMGET', P, 'l', 'v', 'm', 'y', 'n', 'dc', 'df', 'c')
if not head[1] then return 'nopart' end
local number, cancelled = tonumber(ARGV[2]), head[6] or ' '
local name = format('%s-%.0f', ARGV[1], number)
local at = place_of(Y, ARGV[1], ARGV[2])
local entry = call('ZRANGE', Y, at, at, 'WITHSCORES')
local blob, index
if entry[1] and tonumber(entry[2]) == tonumber(ARGV[1]) then
  blob = string.sub(entry[1], 17)
  index = string.byte(blob) - 1 - (tonumber(number_of(entry[1])) - number)
end
local now = keep_time(P, head[8])
if not blob or index < 0 then
  -- A write for WAIT: an earlier call may have changed it.
  call('HSET', P, 'y', head[4])
  local state = 'delivered'
  if string.find(cancelled, ' ' .. name .. ' ', 1, true) then
    state = 'cancelled'
  elseif number == 0 or number > tonumber(head[5])
    or tonumber(ARGV[1]) <= tonumber(head[7] or 0) then
    state = 'missing'
  end
  return { now, 0, state, '' }
end
call('ZREM', Y, entry[1])
local before, after
if index > 0 then before, blob = cut(blob, index) end
if string.byte(blob) > 1 then blob, after = cut(blob, 1) end
if before then call('ZADD', Y, entry[2], format('%016.0f', number - 1) .. before) end
if after then call('ZADD', Y, entry[2], number_of(entry[1]) .. after) end
if ARGV[3] == 'deliver' then
  local id = write_blobs(P, S, now, head, { blob }, 1)
  call('HSET', P, 'y', head[4] - 1)
  return { now, 1, 'delivered', id }
end
local first, least, count = nil, nil, 0
for text in string.gmatch(cancelled .. name, '%S+') do
  local ms = split(text)
  if not least or ms < least then first, least = text, ms end
  count = count + 1
end
cancelled = cancelled .. name .. ' '
local forgotten = tonumber(head[7] or 0)
if count > CANCELLED then
  local from, to = string.find(cancelled, ' ' .. first .. ' ', 1, true)
  cancelled = string.sub(cancelled, 1, from) .. string.sub(cancelled, to + 1)
  forgotten = math.max(forgotten, least)
end
call('HSET', P, 'y', head[4] - 1, 'dc', cancelled, 'df', format('%.0f', forgotten))
return { now, 1, 'cancelled', '' }
