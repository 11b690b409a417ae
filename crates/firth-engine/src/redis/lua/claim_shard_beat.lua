-- ARGV: number, token, ttl in µs, capacity, roster that the member knows.
local number, me = ARGV[1], of_member(ARGV[1], ARGV[2])
if not me then return 'fenced' end
local now, ttl = keep_time(M, call('HGET', M, 'c')), tonumber(ARGV[3])
sweep(math.floor(now / 1000), number)
renew(number, me, now, ttl, ARGV[4])
local orphaned, left, next_free, next_expiry = 0, 0, -1, -1
for _, gone in ipairs(call('ZRANGE', X, 0, LIVES - 1)) do
  local held = call('ZCOUNT', O, gone, gone)
  if member(gone).presence == '2' then left = left + held else orphaned = orphaned + held end
end
local free = call('ZRANGE', F, 0, 0, 'WITHSCORES')
if left > 0 then next_free = 0 elseif free[2] then next_free = until_us(now, tonumber(free[2])) end
local first = call('ZRANGE', D, 0, 1, 'WITHSCORES')
local other = first[1] == number and first[4] or first[2]
if other and not (first[1] == number and not first[3]) then
  next_expiry = until_us(now, tonumber(other))
end
local roster = call('HGET', M, 'r')
local answer = {
  now, call('ZCOUNT', O, number, number), tonumber(me.losses), call('ZCARD', N),
  call('ZCARD', F) + left, orphaned, next_free, next_expiry,
  tonumber(roster),
}
if roster ~= ARGV[5] then
  local there = call('ZRANGE', D, 0, -1)
  for i, text in ipairs(call('HMGET', W, unpack(there))) do
    local n = #answer
    answer[n + 1], answer[n + 2] = there[i], tonumber(match(text, '^%x+ %d+ %d+ %d+ %d+ (%d+)'))
  end
end
return answer
