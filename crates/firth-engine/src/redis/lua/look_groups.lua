-- KEYS: G of each group, all of one partition. Per lease: epoch, holder, µs left, beats, note.
local now, found = now_us(), {}
for i, G in ipairs(KEYS) do
  local lease = call('HMGET', G, 'le', 'lh', 'ld', 'lb', 'ln')
  if lease[1] then lease[3] = until_us(now, tonumber(lease[3])) else lease = {} end
  found[i] = lease
end
return found
