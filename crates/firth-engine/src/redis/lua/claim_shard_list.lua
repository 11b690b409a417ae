-- ARGV: how many at most, and where to begin in the order of names (as ZRANGEBYLEX takes it), or
-- nothing for orphans only. First the time, then per offer: name, text, 0 free, 1 owned or 2
-- orphaned, since when its member is gone. What a member left is free.
local names, found, lives, max = {}, { claim_shard_time() }, {}, tonumber(ARGV[1])
if ARGV[2] then
  names = call('ZRANGEBYLEX', N, ARGV[2], '+', 'LIMIT', 0, max)
else
  for _, gone in ipairs(call('ZRANGE', X, 0, LIVES - 1)) do
    if #names >= max then break end
    if member(gone).presence == '1' then
      for _, name in ipairs(call('ZRANGEBYSCORE', O, gone, gone, 'LIMIT', 0, max - #names)) do
        names[#names + 1] = name
      end
    end
  end
end
if #names == 0 then return found end
for i, text in ipairs(call('HMGET', H, unpack(names))) do
  local _, owner = parse(text)
  local state, since, n = 0, '0', #found
  if owner ~= '0' then
    if lives[owner] == nil then lives[owner] = member(owner) or false end
    local m = lives[owner]
    if m then state, since = m.presence == '0' and 1 or m.presence == '1' and 2 or 0, m.since end
  end
  found[n + 1], found[n + 2], found[n + 3], found[n + 4] = names[i], text, state, since
end
return found
