-- KEYS: P S G D X.
local head = call('HMGET', KEYS[1], 't', 'l', 'c')
if not head[1] then return 'nopart' end
local t, l = head[1], head[2]
local g = call('HMGET', KEYS[3], 'f', 'a', 'c', 'n')
if not g[1] then return 'nogroup' end
local _, tseq = split(t)
local _, lseq = split(l)
local _, fseq = split(g[1])
local list, now = runs(g[2]), read_time(head[3])
local from = math.max(fseq, tseq)
local waiting = lseq - from - count_between(list, from + 1, lseq)
local oldest = -1
if waiting > 0 then
  local ms = split(find(KEYS[2], t, l, first_missing(list, from)))
  oldest = math.max(now - ms * 1000, 0)
end
local lease = call('HMGET', KEYS[3], 'le', 'lh', 'ld', 'lb', 'ln')
if lease[1] then lease[3] = until_us(now, tonumber(lease[3])) else lease = {} end
return { g[1], g[2], waiting, due_count(g[4], KEYS[4]), next_due(KEYS[4], now),
  call('ZCARD', KEYS[5]), tonumber(g[3]), oldest, lease }
