-- An append that is neither delayed nor numbered, which most are. KEYS: P S. ARGV: blobs. What
-- lib/write.lua does, in one piece: on the way of a single message every function made and every
-- number printed counts.
local call, P, S = redis.call, KEYS[1], KEYS[2]
local head = call('HMGET', P, 'l', 'v', 'm', 'c')
local last = head[1]
if not last then return 'nopart' end
local time, dash = call('TIME'), string.find(last, '-', 1, true)
local now_ms = time[1] .. string.format('%03d', math.floor(time[2] / 1000))
-- read_time of lib/clock.lua; the offset is 0 unless the server's clock stepped.
local offset, kept = string.match(head[4] or '', '^(%-?%d+) (%d+)$')
if offset then
  local wall, most = time[1] * 1000000 + time[2], 9007199254740991
  offset, kept = tonumber(offset), tonumber(kept)
  if math.abs(offset) > most or kept > most then offset, kept = 0, 0 end
  local now = wall + offset
  local shrunk = math.min(math.floor(math.max(now - kept, 0) / 20), math.abs(offset))
  if offset > 0 then now = now - shrunk else now = now + shrunk end
  if now + 2000000 < kept then now = kept end
  if now ~= wall then now_ms = string.format('%.0f', math.floor(now / 1000)) end
end
local last_ms, seq = string.sub(last, 1, dash - 1), tonumber(string.sub(last, dash + 1))
-- As numbers: digits may differ in length.
local prefix = (tonumber(now_ms) > tonumber(last_ms) and now_ms or last_ms) .. '-'
local first, largest, id = seq + 1, tonumber(head[3]), nil
local most = largest
for i = 1, #ARGV do
  local blob = ARGV[i]
  seq = seq + string.byte(blob)
  id = prefix .. string.format('%d', seq)
  call('XADD', S, id, 'r', blob)
  if #blob > most then most = #blob end
end
local version = string.format('%d', head[2] + 1)
if most > largest then
  call('HSET', P, 'l', id, 'v', version, 'm', most)
else
  call('HSET', P, 'l', id, 'v', version)
end
return { 0, prefix .. string.format('%d', first) }
