-- KEYS: P S G D E I K. ARGV: epoch, token, how many at most, how many bytes at most, ids whose
-- content is known, in order. Answers per batch of retries: 'attempt:crashes', ids, the number of
-- contents (none if all are known), then these, empty for known ones.
local P, S, G, D, E, I, K = unpack(KEYS)
local t, clock = unpack(call('HMGET', P, 't', 'c'))
if not t then return 'nopart' end
local g = call('HMGET', G, 'le', 'lt', 'lh', 'f', 'n')
local refused = fence(g, ARGV[1], ARGV[2])
if refused then return refused end
if not g[4] then return 'nogroup' end
local now = keep_time(P, clock)
local now_ms = math.floor(now / 1000)
local room, bytes, known, is_known = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], nil
local _, tseq = split(t)
-- What a lossy trim removed is gone for those, too, who still know it.
local some_gone = tseq > 0 and #call('ZRANGEBYSCORE', I, 1, tseq, 'LIMIT', 0, 1) > 0
local some_kept, ems, first, last, blob, index, at
local function content_of(id)
  if not is_known then
    is_known, some_kept = {}, call('EXISTS', K) == 1
    for one in string.gmatch(known, '%S+') do is_known[one] = true end
  end
  if is_known[id] and not some_gone then return '' end
  local content = some_kept and call('HGET', K, id)
  if content then return content end
  local ms, seq = split(id)
  if seq <= tseq then return nil end
  if is_known[id] then return '' end
  if ems ~= ms or seq < first or seq > last then
    ems, first, last, blob = entry_at(S, id)
    index, at = 0, nil
  end
  if ems ~= ms or seq < first then return nil end
  -- Records of one blob come in order more often than not: go on from the last one.
  local wanted = seq - first + 1
  if not at or wanted < index then index, at = 1, offset(blob, 0) end
  while index < wanted do at, index = at + length(blob, index), index + 1 end
  return sub(blob, at, at + length(blob, index) - 1)
end
-- Whether all of a text of ids is known. Batches of retries come in the order in which their
-- records are known more often than not. Finding a text where it is expected is much cheaper than
-- cutting it out: each new text is hashed byte by byte.
local place = 1
local function are_known(ids)
  local from = find(known, ids, place, true) or find(known, ids, 1, true)
  local stop = from and from + #ids
  local is_whole = from and (from == 1 or string.byte(known, from - 1) == 32)
    and (stop > #known or string.byte(known, stop) == 32)
  place = is_whole and stop + 1 or 1
  return is_whole
end
-- As text: the server need not print a number for each batch of retries.
local mark = format('%.0f', TAKEN + now_ms)
local found, n, lost, marks, change, is_full = {}, 0, 0, {}, changes(), false
-- What there is no room for, or no content any more, leaves the batch of retries; `rest` stays due
-- as a batch of retries of its own.
local function take(name, history, count, others, reason, rest)
  local ids = name .. others
  if not some_gone and are_known(ids) then
    found[n + 1], found[n + 2], found[n + 3], n = history, ids, 0, n + 3
    room = room - count
  else
    local head, all, taken = n, list_ids(ids), {}
    n = n + 3
    for i, id in ipairs(all) do
      local content = content_of(id)
      is_full = content and #content > bytes and n > 3
      if is_full then
        rest = table.concat(all, ' ', i) .. (rest and ' ' .. rest or '')
        break
      elseif content then
        n, room, bytes = n + 1, room - 1, bytes - #content
        found[n], taken[#taken + 1] = content, id
      else
        lost = lost + 1
      end
    end
    ids = table.concat(taken, ' ')
    if ids == '' then
      n = head
    else
      found[head + 1], found[head + 2], found[head + 3] = history, ids, #taken
    end
  end
  if ids == name .. others and not rest then
    marks[#marks + 1], marks[#marks + 2] = mark, name
  elseif ids ~= '' or rest ~= name .. others then
    local time = rest and call('ZSCORE', D, name)
    drop(change, name)
    if ids ~= '' then put_list(change, list_ids(ids), mark, history, reason) end
    if rest then put_list(change, list_ids(rest), time, history, reason) end
  end
end
local function take_all(name, text)
  local history, count, others, reason = parse_retry_batch(text)
  if is_full or room == 0 or count > room and n > 0 then
    is_full = true
  elseif count > room then
    is_full = true
    local ids, stop = name .. others, 0
    for _ = 1, room do stop = find(ids, ' ', stop + 1, true) end
    take(name, history, room, sub(ids, #name + 1, stop - 1), reason, sub(ids, stop + 1))
  else
    take(name, history, count, others, reason)
  end
end
local from, step, names = 0, math.min(room, 32), nil
repeat
  names = call('ZRANGEBYSCORE', D, '-inf', now_ms, 'LIMIT', from, step)
  from = from + #names
  each_retry_batch(E, names, take_all)
until room == 0 or is_full or #names < step
if lost > 0 then call('HSET', G, 'n', due_count(g[5], D) - lost) end
if #marks > 0 then call('ZADD', D, unpack(marks)) end
write(change, D, E, I)
return { now, lost, next_due(D, now), found }
