-- KEYS: P G D E I K X T B. ARGV: content instead of the letters' own, or nothing; then ids in order, each once.
local P, G, D, E, I, K, X, T, B = unpack(KEYS)
local version = call('HGET', P, 'v')
if not version then return 'nopart' end
local g = call('HMGET', G, 'f', 'a')
if not g[1] then return 'nogroup' end
local bodies, ids = call('HMGET', B, unpack(ARGV, 2)), {}
for i, body in ipairs(bodies) do
  if body then ids[#ids + 1] = ARGV[i + 1] end
end
if #ids == 0 then return 0 end
if call('ZCARD', D) + #ids > MAX_DUE then return 'full' end
local _, fseq = split(g[1])
local list, now_ms = runs(g[2]), math.floor(now_us() / 1000)
for i, body in ipairs(bodies) do
  local id = ARGV[i + 1]
  local _, seq = split(id)
  -- After a reset its record may be waiting or due again; then it comes anyway, and must not be in two places.
  local is_waiting = seq > fseq and not contains(list, seq)
  if body and not is_waiting and not call('ZSCORE', D, id) then
    local size, from = match(body, '^%d+ %d+ %d+ (%d+) ()')
    call('ZADD', D, now_ms, id)
    call('HSET', E, id, '1:0:' .. string.sub(body, from, from + size - 1))
    call('ZADD', I, -seq, id)
    call('HSET', K, id, ARGV[1] ~= '' and ARGV[1] or string.sub(body, from + size))
  end
end
call('ZREM', X, unpack(ids))
call('ZREM', T, unpack(ids))
call('HDEL', B, unpack(ids))
call('HSET', P, 'v', version + 1)
return #ids
