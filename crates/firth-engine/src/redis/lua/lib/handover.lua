-- Gives offers to a member under one epoch: texts of H in, answers { name, kind, last, payload,
-- checkpoint } out.
local function hand_over(number, me, now, names, kinds, texts, bytes)
  local epoch, ms = next_number(now), format('%.0f', math.floor(now / 1000))
  local answer, owned, kept, free = { epoch }, {}, {}, {}
  for from = 1, #names, 64 do
    local last_one = math.min(from + 63, #names)
    local payloads, checkpoints = call('HMGET', P, unpack(names, from, last_one)),
      call('HMGET', C, unpack(names, from, last_one))
    for i = from, last_one do
      local name, payload = names[i], payloads[i - from + 1] or ''
      local checkpoint = checkpoints[i - from + 1]
      local _, owner, _, offered, last = parse(texts[i])
      local n, m = #answer, #owned
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = name, kinds[i],
        last, payload, checkpoint
      owned[m + 1], owned[m + 2] = number, name
      kept[m + 1], kept[m + 2] = name, table.concat({ epoch, number, ms, offered, me.name }, ' ')
      if owner == '0' then free[#free + 1] = name end
      bytes = bytes - #payload - #(checkpoint or '')
      if bytes <= 0 then break end
    end
    if bytes <= 0 then break end
  end
  call('ZADD', O, unpack(owned))
  call('HSET', H, unpack(kept))
  if #free > 0 then call('ZREM', F, unpack(free)) end
  return answer
end
