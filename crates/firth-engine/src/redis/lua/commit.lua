-- KEYS: P G D E I K X T B. ARGV: epoch, token, frontier, ahead, then the number of done, retried and dead records and of sorts
-- of retries, then ids of all these records. Then per sort (retries stand in the order of their sorts): how many, delay in µs, reason,
-- 1 if kept. Then the contents of kept ones, and per dead record: crashes, reason, content.
-- Here a microsecond counts: numbers that are only handed on stay texts, and what most records share is worked out once.
local P, G, D, E, I, K, X, T, B = unpack(KEYS)
local last = call('HGET', P, 'l')
if not last then return 'nopart' end
local g = call('HMGET', G, 'le', 'lt', 'lh', 'f', 'a', 'cs')
local refused = fence(g, ARGV[1], ARGV[2])
if refused then return refused end
if not g[4] then return 'nogroup' end
local wrong, old, new, fseq, nseq = check_progress(last, g[4], g[5], ARGV[3], ARGV[4])
if wrong then return wrong end
local done, retried, dead, sorts = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
-- Each judged record is open in the log and passed by this commit, or was taken from due; `gone` are those that leave due.
local seqs, entries, taken, gone = {}, {}, {}, {}
for i = 9, 8 + done do
  taken[i - 8], gone[i - 8] = ARGV[i], ARGV[i]
end
for i = 9 + done, 8 + done + retried + dead do
  local id = ARGV[i]
  local text = match(id, '-(%d+)$')
  local seq = tonumber(text)
  seqs[i] = text
  if seq > fseq and not contains(old, seq) then
    if seq > nseq and not contains(new, seq) then return 'notopen ' .. id end
  else
    taken[#taken + 1] = id
    if i > 8 + done + retried then gone[#gone + 1] = id end
  end
end
if #taken > 0 then
  for i, score in ipairs(call('ZMSCORE', D, unpack(taken))) do
    if not score or tonumber(score) < TAKEN then return 'notopen ' .. taken[i] end
  end
  if #taken > done then
    for i, entry in ipairs(call('HMGET', E, unpack(taken, done + 1))) do entries[taken[done + i]] = entry end
  end
end
local is_new = done + retried + dead > #taken
if is_new and retried > 0 and call('ZCARD', D) - #taken + retried > MAX_DUE then return 'full' end
-- Nothing was written up to here, and nothing is refused from here on.
local now = now_us()
local record, arg = 8 + done, 8 + done + retried + dead
local content = arg + 4 * sorts
if retried > 0 then
  local times, texts, index, kept, n, added = {}, {}, {}, {}, 0, 0
  for _ = 1, sorts do
    local reason, is_kept = ARGV[arg + 3], ARGV[arg + 4] == '1'
    local due, second = format('%.0f', later_ms(now, tonumber(ARGV[arg + 2]))), '2:0:' .. reason
    for _ = 1, tonumber(ARGV[arg + 1]) do
      record, n = record + 1, n + 2
      local id = ARGV[record]
      local entry = entries[id]
      times[n - 1], times[n], texts[n - 1], texts[n] = due, id, id, second
      if entry then
        local attempt, crashes = match(entry, '^(%d+):(%d+):')
        texts[n] = (attempt + 1) .. ':' .. crashes .. ':' .. reason
      end
      if is_kept then
        content = content + 1
        kept[#kept + 1], kept[#kept + 2] = id, ARGV[content]
      end
      if is_kept or not entry then
        added = added + 2
        index[added - 1], index[added] = (is_kept and '-' or '') .. seqs[record], id
      end
    end
    arg = arg + 4
  end
  call('ZADD', D, unpack(times))
  call('HSET', E, unpack(texts))
  if added > 0 then call('ZADD', I, unpack(index)) end
  if #kept > 0 then call('HSET', K, unpack(kept)) end
end
if dead > 0 then
  local by_id, by_time, bodies, now_ms = {}, {}, {}, format('%.0f', math.floor(now / 1000))
  for i = 1, dead do
    record = record + 1
    local id, at = ARGV[record], 2 * i
    local attempts, crashes, reason = 1, ARGV[content + 1], ARGV[content + 2]
    if entries[id] then attempts, crashes = match(entries[id], '^(%d+):(%d+):') end
    by_id[at - 1], by_id[at] = seqs[record], id
    by_time[at - 1], by_time[at] = now_ms, id
    bodies[at - 1] = id
    bodies[at] = format('%s %s %s %d ', now_ms, attempts, crashes, #reason) .. reason .. ARGV[content + 3]
    content = content + 3
  end
  call('ZADD', X, unpack(by_id))
  call('ZADD', T, unpack(by_time))
  call('HSET', B, unpack(bodies))
end
if #gone > 0 then
  call('ZREM', D, unpack(gone))
  call('ZREM', I, unpack(gone))
  call('HDEL', E, unpack(gone))
  if call('EXISTS', K) == 1 then call('HDEL', K, unpack(gone)) end
end
store_progress(G, ARGV[3], ARGV[4], new, nseq, g[6])
local due = call('ZCARD', D)
return { due, due > 0 and next_due(D, now) or -1 }
