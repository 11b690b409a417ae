-- KEYS: P G D E I K X T B S. ARGV: epoch, token, frontier, ahead, newest record read, ids of done
-- records in order, the number of bundles of retries and of dead records. Then per bundle (retries
-- of one page, in order, that can become one batch of retries): delay in µs, reason, content if it
-- is kept, how many, ids. Then per dead record: id, crashes, reason, content. Then the reach. Here
-- a microsecond counts: what is judged together is looked at together, and record by record only
-- where that does not settle it.
local P, G, D, E, I, K, X, T, B, S = unpack(KEYS)
local last, clock = unpack(call('HMGET', P, 'l', 'c'))
if not last then return 'nopart' end
local g = call('HMGET', G, 'le', 'lt', 'lh', 'f', 'a', 'cs', 'n')
local refused = fence(g, ARGV[1], ARGV[2])
if refused then return refused end
if not g[4] then return 'nogroup' end
local lost = check_seen(P, S, ARGV[5], last)
if lost then return lost end
local wrong, old, new, fseq, nseq = check_progress(last, g[4], g[5], ARGV[3], ARGV[4])
if wrong then return wrong end
local done, bundles, dead = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local letters = 8 + 5 * bundles
-- Each judged record is open in the log and passed by this commit, or was taken from due: in a
-- batch of retries that is done as a whole, or not.
local whole, taken, left, retried, is_new, fresh, at = {}, {}, 0, 0, false, {}, 1
while at <= #done do
  local _, id, following = nil, match(done, '^([%d-]+) ?()', at)
  local text, count, others = call('HGET', E, id), nil, nil
  if text then _, count, others = parse_retry_batch(text) end
  local stop = text and at + #id + #others
  if text and find(done, others, at + #id, true) == at + #id
    and (stop > #done or string.byte(done, stop) == 32) then
    whole[#whole + 1], left, at = id, left + count, stop + 1
  else
    taken[#taken + 1], at = id, following
  end
end
local function is_passed(id)
  local seq = tonumber(first_seq(id))
  if seq <= fseq or contains(old, seq) then
    taken[#taken + 1] = id
    return true
  end
  is_new = true
  return seq <= nseq or contains(new, seq)
end
for bundle = 1, bundles do
  local count, ids = ARGV[7 + 5 * bundle], ARGV[8 + 5 * bundle]
  local from, to = tonumber(first_seq(ids)), tonumber(last_seq(ids))
  retried = retried + tonumber(count)
  fresh[bundle] = from > fseq and to <= nseq and count_between(old, from, to) == 0
  if fresh[bundle] then
    is_new = true
  else
    for id in string.gmatch(ids, '%S+') do
      if not is_passed(id) then return 'notopen ' .. id end
    end
  end
end
for i = letters + 1, letters + 4 * dead, 4 do
  if not is_passed(ARGV[i]) then return 'notopen ' .. ARGV[i] end
end
-- The batches of retries of those that were taken and are judged one by one.
local retry_batches, homes, names = {}, {}, whole
if #taken > 0 then
  local pages = {}
  local function load(name, text)
    if homes[name] then return end
    local history, _, others, reason = parse_retry_batch(text)
    local retry_batch = { name = name, history = history, reason = reason,
      ids = list_ids(name .. others) }
    for _, id in ipairs(retry_batch.ids) do homes[id] = retry_batch end
  end
  each_retry_batch(E, taken, load)
  names = { unpack(whole) }
  for _, id in ipairs(taken) do
    local page = not homes[id] and page_of(tonumber(first_seq(id)))
    if page and not pages[page] then
      pages[page] = true
      each_retry_batch(E, beginning_in_page(I, page), load)
    end
    local home = homes[id]
    if not home then return 'notopen ' .. id end
    if not home.left then
      home.left = #home.ids
      names[#names + 1], retry_batches[#retry_batches + 1] = home.name, home
    end
    home.left = home.left - 1
  end
end
local some_kept
if #names > 0 then
  some_kept = call('EXISTS', K) == 1
  local times = call('ZMSCORE', D, unpack(names))
  local marks = some_kept and call('ZMSCORE', I, unpack(names))
  for i, name in ipairs(names) do
    if tonumber(times[i]) < TAKEN then return 'notopen ' .. name end
    local retry_batch = retry_batches[i - #whole]
    if retry_batch then
      retry_batch.time, retry_batch.is_kept = times[i], marks and tonumber(marks[i]) < 0
    end
  end
end
local count = due_count(g[7], D) - left - #taken + retried
if is_new and retried > 0 and count > MAX_DUE then return 'full' end
-- Nothing was written up to here, and nothing is refused from here on.
local now, change = keep_time(P, clock), changes()
for _, name in ipairs(whole) do drop(change, name) end
local is_judged
for _, retry_batch in ipairs(retry_batches) do
  drop(change, retry_batch.name)
  if retry_batch.left > 0 then
    if not is_judged then
      is_judged = {}
      for _, id in ipairs(taken) do is_judged[id] = true end
    end
    local rest = {}
    for _, id in ipairs(retry_batch.ids) do
      if not is_judged[id] then rest[#rest + 1] = id end
    end
    put_list(change, rest, retry_batch.time, retry_batch.history, retry_batch.reason)
  end
end
local now_ms = format('%.0f', math.floor(now / 1000))
-- The history and the text of failures after one more failure. The members of a home that are in
-- one bundle share both.
local function failed_again(home, bundle, reason)
  if not home then return '2:0', failed(nil, reason, 1, now_ms, g[3]) end
  if home.bundle ~= bundle then
    local attempt, crashes = match(home.history, '^(%d+):(%d+)$')
    home.bundle, home.again = bundle, attempt + 1 .. ':' .. crashes
    home.failures = failed(home.reason, reason, attempt, now_ms, g[3])
  end
  return home.again, home.failures
end
for bundle = 1, bundles do
  local delay, reason, content, count, ids = unpack(ARGV, 4 + 5 * bundle, 8 + 5 * bundle)
  local time = format('%.0f', later_ms(now, tonumber(delay)))
  if content ~= '' then
    local history, failures = failed_again(homes[ids], bundle, reason)
    put(change, ids, time, history .. ':' .. failures, '-' .. first_seq(ids))
    call('HSET', K, ids, content)
  elseif fresh[bundle] then
    local history, failures = failed_again(nil, bundle, reason)
    put_ids(change, count, ids, time, history, failures)
  else
    local run, shared, told = {}, nil, nil
    for id in string.gmatch(ids, '%S+') do
      local home = homes[id]
      local history, failures = failed_again(home, bundle, reason)
      if home and home.is_kept then
        put(change, id, time, history .. ':' .. failures, '-' .. first_seq(id))
      else
        if run[1] and (history ~= shared or failures ~= told) then
          put_list(change, run, time, shared, told)
          run = {}
        end
        run[#run + 1], shared, told = id, history, failures
      end
    end
    if run[1] then put_list(change, run, time, shared, told) end
  end
end
if dead > 0 then
  local by_id, by_time, bodies = {}, {}, {}
  for i = 1, dead do
    local id, crashes, reason, content = unpack(ARGV, letters + 4 * i - 3, letters + 4 * i)
    local attempts, n, home = '1', 2 * i, homes[id]
    if home then attempts, crashes = match(home.history, '^(%d+):(%d+)$') end
    local failures = failed(home and home.reason, reason, attempts, now_ms, g[3])
    by_id[n - 1], by_id[n] = first_seq(id), id
    by_time[n - 1], by_time[n] = now_ms, id
    bodies[n - 1], bodies[n] = id,
      format('%s %s %s %d ', now_ms, attempts, crashes, #failures) .. failures .. content
  end
  call('ZADD', X, unpack(by_id))
  call('ZADD', T, unpack(by_time))
  call('HSET', B, unpack(bodies))
end
write(change, D, E, I, some_kept and K)
store_progress(G, ARGV[3], ARGV[4], new, nseq, g[6], count, ARGV[letters + 4 * dead + 1])
return { now, count, count > 0 and next_due(D, now) or -1 }
