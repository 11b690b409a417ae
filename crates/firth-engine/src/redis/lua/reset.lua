-- KEYS: P S G D E I K V. ARGV: kind and value of the position, 1 to drop what is due.
local P, S, G, D, E, I, K, V = unpack(KEYS)
local head = call('HMGET', P, 't', 'l')
if not head[1] then return 'nopart' end
local g = call('HMGET', G, 'f', 'le')
if not g[1] then return 'nogroup' end
local f = start(S, head[1], head[2], ARGV[1], ARGV[2])
local _, fseq = split(f)
if ARGV[3] == '1' then
  call('UNLINK', D, E, I, K)
else
  local mark = format('%.0f', fseq)
  for _, range in ipairs({ { '(' .. mark, '+inf' }, { '-inf', '(-' .. mark } }) do
    local ids = call('ZRANGEBYSCORE', I, range[1], range[2])
    for from = 1, #ids, 1000 do
      local last = math.min(from + 999, #ids)
      for _, key in ipairs({ D, I }) do call('ZREM', key, unpack(ids, from, last)) end
      for _, key in ipairs({ E, K }) do call('HDEL', key, unpack(ids, from, last)) end
    end
  end
  local taken, now_ms = call('ZRANGEBYSCORE', D, TAKEN, '+inf'), math.floor(now_us() / 1000)
  for _, id in ipairs(taken) do call('ZADD', D, now_ms, id) end
end
call('HSET', G, 'f', f, 'a', '', 'x', 1, 'c', 0, 'cs', format('%.0f', fseq + 1))
if g[2] then
  call('HSET', G, 'le', next_epoch(g[2], now_us()), 'lh', '', 'ld', 0, 'ln', '')
  call('INCR', V)
end
return { f }
