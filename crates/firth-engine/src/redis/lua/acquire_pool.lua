-- KEYS: L N M. ARGV: name, holder, token, ttl in µs, note, epoch and beats that stood still.
local L, N, M, now = KEYS[1], KEYS[2], KEYS[3], now_us()
local epoch, _, deadline, beats = parse(call('HGET', L, ARGV[1]))
if epoch then
  local left = until_us(now, tonumber(deadline))
  if left > 0 and not (epoch == ARGV[6] and beats == ARGV[7]) then
    return { 0, epoch, left, tonumber(beats), call('HGET', N, ARGV[1]) }
  end
end
epoch = next_epoch(math.max(epoch or 0, call('HGET', M, 'e') or 0), now)
call('HSET', L, ARGV[1], format('%s %s %.0f %.0f', epoch, ARGV[3], later_ms(now, tonumber(ARGV[4])), (beats or 0) + 1))
call('HSET', N, ARGV[1], ARGV[2] .. ' ' .. ARGV[5])
call('HSET', M, 'e', epoch)
changed(M)
return { 1, epoch }
