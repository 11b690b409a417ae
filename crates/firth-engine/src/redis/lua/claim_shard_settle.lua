-- ARGV: number, token, 'done' or a rest in µs, then name and epoch of each claim. Answers 0 done, 1
-- fenced, 2 missing for each.
local number = ARGV[1]
if not of_member(number, ARGV[2]) then return 'fenced' end
local now, names, seen = keep_time(M, call('HGET', M, 'c')), {}, {}
local outcomes = { now }
local ms, is_done = format('%.0f', math.floor(now / 1000)), ARGV[3] == 'done'
for i = 4, #ARGV, 2 do names[#names + 1] = ARGV[i] end
local gone, texts, free = {}, {}, {}
local ready = is_done or later_ms(now, tonumber(ARGV[3]))
for i, text in ipairs(call('HMGET', H, unpack(names))) do
  local name = names[i]
  if not text then
    outcomes[i + 1] = 2
  elseif seen[name] then
    outcomes[i + 1] = is_done and 2 or 1
  else
    local epoch, owner, _, offered, last = parse(text)
    outcomes[i + 1] = 1
    if owner == number and epoch == ARGV[2 * i + 3] then
      local n = #texts
      outcomes[i + 1], seen[name], gone[#gone + 1] = 0, true, name
      texts[n + 1], texts[n + 2] = name, table.concat({ epoch, '0', ms, offered, last }, ' ')
      free[n + 1], free[n + 2] = ready, name
    end
  end
end
if #gone > 0 then
  call('ZREM', O, unpack(gone))
  if is_done then
    call('ZREM', N, unpack(gone))
    for _, key in ipairs({ H, P, C }) do call('HDEL', key, unpack(gone)) end
  else
    call('HSET', H, unpack(texts))
    call('ZADD', F, unpack(free))
    wake()
  end
end
return outcomes
