-- KEYS: P S G D E I K V H. ARGV: kind and value of the position, 1 to drop what is due, perhaps
-- epoch and token of a hold on the group H. Answers the frontier, and 1 if there is more to do.
--
-- Due records behind the position leave in steps of AT_ONCE batches of retries and as many kept
-- records, the last ones first. A step that is not the last one makes what lies behind its own mark
-- wait again and leaves the rest as it is. So the group is whole after each step.
local P, S, G, D, E, I, K, V, H = unpack(KEYS)
local head = call('HMGET', P, 't', 'l', 'c')
if not head[1] then return 'nopart' end
if ARGV[4] then
  local refused = fence(call('HMGET', H, 'le', 'lt', 'lh'), ARGV[4], ARGV[5])
  if refused then return refused end
end
local g = call('HMGET', G, 'f', 'le', 'n', 'a')
if not g[1] then return 'nogroup' end
local f, ahead = start(S, head[1], head[2], ARGV[1], ARGV[2]), ''
local _, goal = split(f)
local count, mark = due_count(g[3], D), goal
-- Moves the mark to before the last of these names, if there may be more of them.
local function further(names, room)
  if #names < room then return end
  local ms, seq = split(names[room])
  if seq > mark then mark, f = seq - 1, position(S, head[1], head[2], join(ms, seq - 1)) end
end
-- Lets the due records behind the mark go, and gives back what the owner has taken.
local function undo()
  -- A holder that moves its own group is fenced by its first step.
  local room, from = ARGV[4] and H == G and MAX_DUE or AT_ONCE, format('%.0f', goal)
  local change, some_share = changes(), count > call('ZCARD', D)
  local behind = call('ZREVRANGEBYSCORE', I, '+inf', '(' .. from, 'LIMIT', 0, room)
  local kept = call('ZRANGEBYSCORE', I, '-inf', '(-' .. from, 'LIMIT', 0, room)
  further(behind, room)
  further(kept, room)
  for _, name in ipairs(kept) do behind[#behind + 1] = name end
  each_retry_batch(E, behind, function(name, text)
    if tonumber(first_seq(name)) > mark then
      drop(change, name)
      count = count - (match(text, '^%d+:%d+/(%d+)') or 1)
    end
  end)
  -- The mark may lie inside a batch of retries, if there is one of several records.
  local around = some_share and beginning_in_page(I, page_of(mark), mark) or {}
  each_retry_batch(E, around, function(name, text)
    if not match(text, '^%d+:%d+/') then return end
    local history, records, others, reason = parse_retry_batch(text)
    if tonumber(last_seq(others)) <= mark then return end
    local stay = {}
    for _, id in ipairs(list_ids(name .. others)) do
      if tonumber(first_seq(id)) <= mark then stay[#stay + 1] = id end
    end
    put_list(change, stay, call('ZSCORE', D, name), history, reason)
    count = count - records + #stay
  end)
  write(change, D, E, I, K)
  -- The owner has nothing any more.
  local taken, now_ms = call('ZRANGEBYSCORE', D, TAKEN, '+inf'), nil
  for from = 1, #taken, 1000 do
    now_ms = now_ms or math.floor(read_time(head[3]) / 1000)
    local scores = {}
    for i = from, math.min(from + 999, #taken) do
      scores[#scores + 1], scores[#scores + 2] = now_ms, taken[i]
    end
    call('ZADD', D, unpack(scores))
  end
end
if ARGV[3] == '1' or call('ZCOUNT', I, format('-%.0f', goal), format('%.0f', goal)) == 0 then
  -- No due record stays.
  call('UNLINK', D, E, I, K)
  count = 0
else
  undo()
end
local _, own = split(g[1])
if mark > goal and own <= mark then
  local kept = {}
  for i, run in ipairs(runs(g[4])) do
    if run[1] > mark then break end
    kept[i] = format('%.0f-%.0f', run[1], math.min(run[2], mark))
  end
  f, ahead = g[1], table.concat(kept, ',')
end
-- No owner has started a record beyond the new frontier.
local reached = match(f, '%d+$')
call('HSET', G, 'f', f, 'a', ahead, 'x', 1, 'c', 0, 'cs', format('%.0f', reached + 1), 'n', count,
  'r', reached)
if g[2] then
  call('HSET', G, 'le', next_epoch(g[2], now_us()), 'lh', '', 'ld', 0, 'ln', '')
  call('INCR', V)
end
return { f, mark > goal and 1 or 0 }
