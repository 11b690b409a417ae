-- ARGV: names.
local known, gone, found, seen = call('HMGET', H, unpack(ARGV)), {}, {}, {}
for i, name in ipairs(ARGV) do
  gone[i] = 0
  if known[i] and not seen[name] then
    local _, owner = parse(known[i])
    lose(owner)
    gone[i], seen[name], found[#found + 1] = 1, true, name
  end
end
if #found > 0 then
  for _, key in ipairs({ O, F, N }) do call('ZREM', key, unpack(found)) end
  for _, key in ipairs({ H, P, C }) do call('HDEL', key, unpack(found)) end
end
return gone
