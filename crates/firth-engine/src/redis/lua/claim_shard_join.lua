-- ARGV: member, token, ttl in µs, capacity, most members, last life that the member knows of
-- (empty: none).
local now, ttl = keep_time(M, call('HGET', M, 'c')), tonumber(ARGV[3])
local ms = math.floor(now / 1000)
local former = call('HGET', I, ARGV[1])
local count = call('ZCARD', D)
if not former and count >= tonumber(ARGV[5]) then return 'full ' .. count end
if former then
  local m = member(former)
  if m and m.presence == '0' then
    if m.token == ARGV[2] then
      renew(former, m, now, ttl, ARGV[4])
      return { now, former }
    end
    if ARGV[6] ~= '' and tonumber(former) > tonumber(ARGV[6]) then return 'newer ' .. former end
    depart(former, m, '1', ms)
  end
end
local number = next_number(now)
keep(number, {
  token = ARGV[2], ttl = format('%.0f', math.floor(ttl / 1000)), joined = format('%.0f', ms),
  beats = '1', losses = '0',
  capacity = ARGV[4], presence = '0', since = '0', name = ARGV[1],
})
call('ZADD', D, later_ms(now, ttl), number)
call('HSET', I, ARGV[1], number)
call('HINCRBY', M, 'r', 1)
wake()
return { now, number }
