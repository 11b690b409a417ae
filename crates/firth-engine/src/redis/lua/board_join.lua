-- ARGV: member, token, ttl in µs, capacity, most members.
local now = now_us()
local ms = math.floor(now / 1000)
local former = call('HGET', I, ARGV[1])
local count = call('ZCARD', D)
if not former and count >= tonumber(ARGV[5]) then return 'full ' .. count end
if former then
  local m = member(former)
  if m and m.presence == '0' then depart(former, m, '1', ms) end
end
local number, ttl = next_number(now), tonumber(ARGV[3])
keep(number, {
  token = ARGV[2], ttl = format('%.0f', math.floor(ttl / 1000)), joined = format('%.0f', ms), beats = '1', losses = '0',
  capacity = ARGV[4], presence = '0', since = '0', name = ARGV[1],
})
call('ZADD', D, later_ms(now, ttl), number)
call('HSET', I, ARGV[1], number)
call('HINCRBY', M, 'r', 1)
wake()
return { number }
