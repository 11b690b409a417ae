-- KEYS: P G D E I K X T B. ARGV: epoch, token, frontier, ahead, then the number of done, retried and dead records, then
-- their ids, then per retried record: delay in µs, reason, 1 if kept, content; per dead one: crashes, reason, content.
local P, G, D, E, I, K, X, T, B = unpack(KEYS)
local last = call('HGET', P, 'l')
if not last then return 'nopart' end
local g = call('HMGET', G, 'le', 'lt', 'lh', 'f', 'a', 'cs')
local refused = fence(g, ARGV[1], ARGV[2])
if refused then return refused end
if not g[4] then return 'nogroup' end
local wrong, old, new, fseq, nseq = check_progress(last, g[4], g[5], ARGV[3], ARGV[4])
if wrong then return wrong end
local done, retried, dead = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local total = done + retried + dead
local ids = {}
for i = 1, total do ids[i] = ARGV[7 + i] end
-- Where each judged record comes from: taken from due (its entry), or open in the log and passed by this commit (false).
-- Numbers that are only handed on stay texts: printing them is what costs.
local scores, entries = call('ZMSCORE', D, unpack(ids)), call('HMGET', E, unpack(ids))
local seqs, from_due = {}, 0
for i = 1, total do
  local id, score = ids[i], scores[i]
  seqs[i] = match(id, '-(%d+)$')
  if score then
    if tonumber(score) < TAKEN then return 'notopen ' .. id end
    from_due = from_due + 1
  else
    local seq = tonumber(seqs[i])
    local was_open = seq > fseq and not contains(old, seq)
    local is_passed = seq <= nseq or contains(new, seq)
    if i <= done or not was_open or not is_passed then return 'notopen ' .. id end
    entries[i] = false
  end
end
local is_new = false
for i = done + 1, done + retried do is_new = is_new or not scores[i] end
if is_new and call('ZCARD', D) - from_due + retried > MAX_DUE then return 'full' end
-- Nothing was written up to here, and nothing is refused from here on.
local now = now_us()
local gone, n = {}, 0
for i = 1, total do
  if entries[i] and (i <= done or i > done + retried) then
    n = n + 1
    gone[n] = ids[i]
  end
end
local arg = 7 + total
if retried > 0 then
  local index, times, texts, kept = {}, {}, {}, {}
  local added, delay, due = 0, nil, nil
  for i = 1, retried do
    local id, entry, at = ids[done + i], entries[done + i], 2 * i
    -- Most wait equally long.
    if ARGV[arg + 1] ~= delay then
      delay = ARGV[arg + 1]
      due = format('%.0f', later_ms(now, tonumber(delay)))
    end
    times[at - 1], times[at] = due, id
    local attempt, crashes = 1, '0'
    if entry then attempt, crashes = match(entry, '^(%d+):(%d+):') end
    texts[at - 1], texts[at] = id, (attempt + 1) .. ':' .. crashes .. ':' .. ARGV[arg + 2]
    local is_kept = ARGV[arg + 3] == '1'
    if is_kept then kept[#kept + 1], kept[#kept + 2] = id, ARGV[arg + 4] end
    if is_kept or not entry then
      index[added + 1], index[added + 2] = (is_kept and '-' or '') .. seqs[done + i], id
      added = added + 2
    end
    arg = arg + 4
  end
  call('ZADD', D, unpack(times))
  call('HSET', E, unpack(texts))
  if added > 0 then call('ZADD', I, unpack(index)) end
  if #kept > 0 then call('HSET', K, unpack(kept)) end
end
if dead > 0 then
  local by_id, by_time, bodies, now_ms = {}, {}, {}, math.floor(now / 1000)
  for i = done + retried + 1, total do
    local attempts, crashes = 1, ARGV[arg + 1]
    if entries[i] then attempts, crashes = match(entries[i], '^(%d+):(%d+):') end
    by_id[#by_id + 1], by_id[#by_id + 2] = seqs[i], ids[i]
    by_time[#by_time + 1], by_time[#by_time + 2] = now_ms, ids[i]
    bodies[#bodies + 1] = ids[i]
    bodies[#bodies + 1] = format('%.0f %s %s %d ', now_ms, attempts, crashes, #ARGV[arg + 2]) .. ARGV[arg + 2] .. ARGV[arg + 3]
    arg = arg + 3
  end
  call('ZADD', X, unpack(by_id))
  call('ZADD', T, unpack(by_time))
  call('HSET', B, unpack(bodies))
end
if n > 0 then
  call('ZREM', D, unpack(gone))
  call('ZREM', I, unpack(gone))
  call('HDEL', E, unpack(gone))
  call('HDEL', K, unpack(gone))
end
store_progress(G, ARGV[3], ARGV[4], new, nseq, g[6])
local due = call('ZCARD', D)
return { due, due > 0 and next_due(D) or -1 }
