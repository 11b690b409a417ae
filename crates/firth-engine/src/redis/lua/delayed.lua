-- KEYS: P Y. ARGV: time and number from where on, or nothing twice; how many entries and how many
-- bytes at most.
local head, Y = call('HMGET', KEYS[1], 'm', 'c'), KEYS[2]
if not head[1] then return 'nopart' end
local at = ARGV[1] ~= '' and place_of(Y, ARGV[1], ARGV[2]) or 0
local now, room, bytes, found = read_time(head[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), {}
-- Big messages are taken one by one, so that the script holds few of them at a time.
local step = tonumber(head[1]) > 65536 and 1 or 32
while room > 0 and bytes > 0 do
  local some = call('ZRANGE', Y, at, at + math.min(step, room) - 1, 'WITHSCORES')
  if #some == 0 then break end
  for i = 1, #some, 2 do
    local ms = tonumber(some[i + 1])
    found[#found + 1] = until_us(now, ms)
    found[#found + 1] = format('%.0f', ms)
    found[#found + 1] = some[i]
    room, bytes = room - 1, bytes - #some[i]
  end
  at = at + #some / 2
end
return { call('ZCARD', Y) > at and 1 or 0, found }
