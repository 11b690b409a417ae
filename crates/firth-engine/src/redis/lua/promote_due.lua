-- KEYS: P S Y. ARGV: how many at most, how many bytes at most.
local P, S, Y = KEYS[1], KEYS[2], KEYS[3]
local head = call('HMGET', P, 'l', 'v', 'm', 'y', 'as', 'ai', 'ak', 'ap', 'ax', 'a0', 'c')
if not head[1] then return 'nopart' end
local now, room, bytes = keep_time(P, head[11]), tonumber(ARGV[1]), tonumber(ARGV[2])
local now_ms, moved, blobs = math.floor(now / 1000), 0, {}
-- Big messages are taken one by one, so that the script holds few of them at a time.
local step = tonumber(head[3]) > 65536 and 1 or 32
while room > 0 and bytes > 0 do
  local ripe = call('ZRANGEBYSCORE', Y, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, step)
  if #ripe == 0 then break end
  local gone = {}
  for i = 1, #ripe, 2 do
    local blob = string.sub(ripe[i], 17)
    if room <= 0 or (#blobs > 0 and #blob > bytes) then bytes = 0 break end
    gone[#gone + 1] = ripe[i]
    local count = string.byte(blob)
    if count > room then
      local tail
      blob, tail = cut(blob, room)
      call('ZADD', Y, ripe[i + 1], string.sub(ripe[i], 1, 16) .. tail)
      count = room
    end
    blobs[#blobs + 1] = blob
    room, bytes, moved = room - count, bytes - #blob, moved + count
  end
  if #gone > 0 then call('ZREM', Y, unpack(gone)) end
end
if moved > 0 then
  write_blobs(P, S, now, head, blobs, 1)
  call('HSET', P, 'y', head[4] - moved)
end
local first = call('ZRANGE', Y, 0, 0, 'WITHSCORES')
return { now, moved, first[2] and until_us(now, tonumber(first[2])) or -1,
  head[5], head[6], head[7], head[8], head[9], head[10] }
