-- ARGV: number, token, how many at most, how many bytes at most. Kinds: 0 free, 1 of a member that
-- vanished, 2 of one that left.
local number, me = ARGV[1], of_member(ARGV[1], ARGV[2])
if not me then return 'fenced' end
local now, max = keep_time(M, call('HGET', M, 'c')), tonumber(ARGV[3])
local ms = math.floor(now / 1000)
sweep(ms, number)
local names, kinds = {}, {}
local function add(some, kind)
  for _, name in ipairs(some) do names[#names + 1], kinds[#kinds + 1] = name, kind end
end
for _, gone in ipairs(call('ZRANGE', X, 0, LIVES - 1)) do
  if #names >= max then break end
  local some = call('ZRANGEBYSCORE', O, gone, gone, 'LIMIT', 0, max - #names)
  if #some == 0 then
    call('ZREM', X, gone)
    call('HDEL', W, gone)
  else
    add(some, tonumber(member(gone).presence))
  end
end
if #names < max then add(call('ZRANGEBYSCORE', F, '-inf', ms, 'LIMIT', 0, max - #names), 0) end
if #names == 0 then return { now, { 0 } } end
return { now, hand_over(number, me, now, names, kinds, call('HMGET', H, unpack(names)),
  tonumber(ARGV[4])) }
