-- KEYS: P G D E I K X T B. ARGV: content instead of the letters' own, or nothing; then ids in
-- order, each once.
local P, G, D, E, I, K, X, T, B = unpack(KEYS)
local version, clock = unpack(call('HMGET', P, 'v', 'c'))
if not version then return 'nopart' end
local g = call('HMGET', G, 'f', 'a', 'n')
if not g[1] then return 'nogroup' end
local bodies, ids = call('HMGET', B, unpack(ARGV, 2)), {}
for i, body in ipairs(bodies) do
  if body then ids[#ids + 1] = ARGV[i + 1] end
end
if #ids == 0 then return 0 end
local count = due_count(g[3], D)
if count + #ids > MAX_DUE then return 'full' end
local _, fseq = split(g[1])
local list, now_ms, change = runs(g[2]), math.floor(read_time(clock) / 1000), changes()
local pages, is_due = {}, {}
for i, body in ipairs(bodies) do
  local id = ARGV[i + 1]
  local _, seq = split(id)
  local page = page_of(seq)
  if body and not pages[page] then
    pages[page] = true
    each_retry_batch(E, beginning_in_page(I, page), function(name, text)
      local _, _, others = parse_retry_batch(text)
      for _, one in ipairs(list_ids(name .. others)) do is_due[one] = true end
    end)
  end
  -- After a reset its record may be waiting or due again; then it comes anyway, and must not be in
  -- two places.
  local is_waiting = seq > fseq and not contains(list, seq)
  if body and not is_waiting and not is_due[id] and not call('ZSCORE', D, id) then
    local size, from = match(body, '^%d+ %d+ %d+ (%d+) ()')
    put(change, id, now_ms, '1:0:' .. sub(body, from, from + size - 1), format('-%.0f', seq))
    call('HSET', K, id, ARGV[1] ~= '' and ARGV[1] or sub(body, from + size))
    count = count + 1
  end
end
write(change, D, E, I)
call('HSET', G, 'n', count)
call('ZREM', X, unpack(ids))
call('ZREM', T, unpack(ids))
call('HDEL', B, unpack(ids))
call('HSET', P, 'v', version + 1)
return #ids
