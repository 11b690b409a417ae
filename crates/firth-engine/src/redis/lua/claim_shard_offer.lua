-- ARGV: name and payload of each offer.
local now = keep_time(M, call('HGET', M, 'c'))
local ms, names, made = format('%.0f', math.floor(now / 1000)), {}, { now }
for i = 1, #ARGV, 2 do names[#names + 1] = ARGV[i] end
local known, seen = call('HMGET', H, unpack(names)), {}
local texts, free, order, payloads = {}, {}, {}, {}
for i, name in ipairs(names) do
  made[i + 1] = 0
  if not known[i] and not seen[name] then
    local n = #texts
    made[i + 1], seen[name] = 1, true
    texts[n + 1], texts[n + 2] = name, table.concat({ '0 0', ms, ms, '' }, ' ')
    free[n + 1], free[n + 2] = ms, name
    order[n + 1], order[n + 2] = 0, name
    payloads[n + 1], payloads[n + 2] = name, ARGV[2 * i]
  end
end
if #texts > 0 then
  call('HSET', H, unpack(texts))
  call('HSET', P, unpack(payloads))
  call('ZADD', F, unpack(free))
  call('ZADD', N, unpack(order))
  wake()
end
return made
