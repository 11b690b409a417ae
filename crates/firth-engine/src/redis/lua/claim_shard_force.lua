-- ARGV: names of the offers to take away from their owners.
local ms, released, gone, texts, free, seen = format('%.0f', math.floor(claim_shard_time() / 1000)),
  {}, {}, {}, {}, {}
for i, text in ipairs(call('HMGET', H, unpack(ARGV))) do
  local name = ARGV[i]
  released[i] = 0
  if text and not seen[name] then
    local epoch, owner, _, offered, last = parse(text)
    if owner ~= '0' then
      local n = #texts
      lose(owner)
      released[i], seen[name], gone[#gone + 1] = 1, true, name
      texts[n + 1], texts[n + 2] = name, table.concat({ epoch, '0', ms, offered, last }, ' ')
      free[n + 1], free[n + 2] = ms, name
    end
  end
end
if #gone > 0 then
  call('ZREM', O, unpack(gone))
  call('HSET', H, unpack(texts))
  call('ZADD', F, unpack(free))
  wake()
end
return released
