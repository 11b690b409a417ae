-- Puts blobs at the end of the log. head = {last id, version, largest blob}; answers the first id.
local function write_blobs(P, S, now, head, blobs, from)
  local ms, seq = split(head[1])
  ms = math.max(ms, math.floor(now / 1000))
  local first, prefix, largest = seq + 1, format('%.0f-', ms), tonumber(head[3])
  local id
  for i = from, #blobs do
    local blob = blobs[i]
    seq = seq + string.byte(blob)
    id = prefix .. format('%.0f', seq)
    call('XADD', S, id, 'r', blob)
    if #blob > largest then largest = #blob end
  end
  call('HSET', P, 'l', id, 'v', head[2] + 1, 'm', largest)
  return prefix .. format('%.0f', first)
end
