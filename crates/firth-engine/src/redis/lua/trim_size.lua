-- One bounded step of retention by size. KEYS: P S R, then the stems of the keys G and I of groups.
-- ARGV: bytes to keep, lossy, entries and bytes to look at. P keeps in 'zi' the last entry whose
-- size was added up, and in 'zb' the sum of what is there.
local P, S = KEYS[1], KEYS[2]
local head = call('HMGET', P, 't', 'l', 'm', 'zi', 'zb')
local t, l = head[1], head[2]
if not t then return 'nopart' end
local _, tseq = split(t)
local _, lseq = split(l)
local keep, page = tonumber(ARGV[1]), tonumber(head[3]) > 65536 and 1 or 32
-- Calls each(seq, bytes, ms, is the last of its entry, id of the entry) for every record after an
-- entry or a mark.
local function sizes_after(id, each)
  local entries, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
  while entries > 0 and bytes > 0 do
    local found = call('XRANGE', S, '(' .. id, '+', 'COUNT', math.min(page, entries))
    if #found == 0 then return end
    for _, entry in ipairs(found) do
      local blob = entry[2][2]
      local ms, last = split(entry[1])
      local count = string.byte(blob)
      for i = 1, count do
        local seq = last - count + i
        if seq > tseq and not each(seq, length(blob, i), ms, i == count, entry[1]) then return end
      end
      id, entries, bytes = entry[1], entries - 1, bytes - #blob
    end
  end
end
local measured, sum = head[4] or t, tonumber(head[5] or 0)
local _, mseq = split(measured)
if mseq < tseq then measured, sum, mseq = t, 0, tseq end
sizes_after(measured, function(seq, bytes, _, is_last, id)
  sum, mseq = sum + bytes, seq
  if is_last then measured = id end
  return true
end)
local removed, is_counted, is_held = 0, mseq == lseq, false
if is_counted and sum > keep then
  local allowed = ARGV[2] == '0' and floor(KEYS[3], KEYS[4], KEYS[5], lseq) or lseq
  local mark = t
  sizes_after(t, function(seq, bytes, ms)
    if sum <= keep then return false end
    if seq > allowed then is_held = true return false end
    sum, removed, mark = sum - bytes, removed + 1, join(ms, seq)
    return true
  end)
  is_held = is_held or (sum > keep and tseq + removed >= allowed)
  t = mark
end
if removed > 0 or measured ~= head[4] then
  call('HSET', P, 't', t, 'zi', measured, 'zb', format('%.0f', sum))
end
return { removed, t, is_held and 1 or 0,
  (not is_counted or (sum > keep and not is_held)) and 1 or 0 }
