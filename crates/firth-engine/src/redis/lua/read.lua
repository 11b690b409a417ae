-- KEYS: P S. ARGV: after, records at most, bytes at most. For partitions whose blobs may be big:
-- stops at either limit.
local head = call('HMGET', KEYS[1], 't', 'm', 'l')
if not head[1] then return 'nopart' end
local S, after, room, bytes = KEYS[2], '(' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ms, seq = split(ARGV[1])
local tms, tseq = split(head[1])
if ms < tms or (ms == tms and seq < tseq) then after, seq = '(' .. head[1], tseq end
local found, step = {}, tonumber(head[2]) > 65536 and 1 or 16
while room > 0 and bytes > 0 do
  local page = call('XRANGE', S, after, '+', 'COUNT', step)
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    local id, blob = entry[1], entry[2][2]
    local _, last = split(id)
    found[#found + 1], found[#found + 2] = id, blob
    room, bytes, after, seq = room - math.min(string.byte(blob), last - seq), bytes - #blob,
      '(' .. id, last
    if room <= 0 or bytes <= 0 then break end
  end
end
return { tonumber(head[2]), head[1], head[3], found }
