-- KEYS: P S G D E I K V H. ARGV: kind and value of the position, 1 to drop what is due, perhaps
-- epoch and token of a hold on the group H.
local P, S, G, D, E, I, K, V, H = unpack(KEYS)
local head = call('HMGET', P, 't', 'l', 'c')
if not head[1] then return 'nopart' end
if ARGV[4] then
  local refused = fence(call('HMGET', H, 'le', 'lt', 'lh'), ARGV[4], ARGV[5])
  if refused then return refused end
end
local g = call('HMGET', G, 'f', 'le', 'n')
if not g[1] then return 'nogroup' end
local f = start(S, head[1], head[2], ARGV[1], ARGV[2])
local _, fseq = split(f)
local count = due_count(g[3], D)
local mark = format('%.0f', fseq)
-- Everything goes at once if no due record lies before the position. Otherwise the cost is linear
-- in those behind it: about 11 ms for 1 000 of them.
if ARGV[3] == '1' or call('ZCOUNT', I, '-' .. mark, mark) == 0 then
  call('UNLINK', D, E, I, K)
  count = 0
else
  local change, now_ms = changes(), math.floor(read_time(head[3]) / 1000)
  local function drop_whole(name, text)
    local _, records = parse_retry_batch(text)
    drop(change, name)
    count = count - records
  end
  each_retry_batch(E, call('ZRANGEBYSCORE', I, '(' .. mark, '+inf'), drop_whole)
  each_retry_batch(E, call('ZRANGEBYSCORE', I, '-inf', '(-' .. mark), drop_whole)
  -- The position may lie inside a batch of retries.
  each_retry_batch(E, beginning_in_page(I, page_of(fseq), fseq), function(name, text)
    local history, records, others, reason = parse_retry_batch(text)
    local stay = {}
    for _, id in ipairs(list_ids(name .. others)) do
      if tonumber(first_seq(id)) <= fseq then stay[#stay + 1] = id end
    end
    if #stay < records then
      put_list(change, stay, call('ZSCORE', D, name), history, reason)
      count = count - records + #stay
    end
  end)
  write(change, D, E, I, K)
  for _, name in ipairs(call('ZRANGEBYSCORE', D, TAKEN, '+inf')) do
    call('ZADD', D, now_ms, name)
  end
end
-- No owner has started a record beyond the new frontier.
call('HSET', G, 'f', f, 'a', '', 'x', 1, 'c', 0, 'cs', format('%.0f', fseq + 1), 'n', count, 'r',
  mark)
if g[2] then
  call('HSET', G, 'le', next_epoch(g[2], now_us()), 'lh', '', 'ld', 0, 'ln', '')
  call('INCR', V)
end
return { f }
