-- KEYS: G of each group, all of one partition, then P. First the time; then per lease: epoch,
-- holder, µs left, beats, note.
local now = read_time(call('HGET', table.remove(KEYS), 'c'))
local found = { now }
for i, G in ipairs(KEYS) do
  local lease = call('HMGET', G, 'le', 'lh', 'ld', 'lb', 'ln')
  if lease[1] then lease[3] = until_us(now, tonumber(lease[3])) else lease = {} end
  found[i + 1] = lease
end
return found
