-- KEYS: L N M E. ARGV: name, holder, token, ttl in µs, note, epoch and beats that stood still.
local L, N, M = KEYS[1], KEYS[2], KEYS[3]
local now = keep_time(M, call('HGET', M, 'c'))
local epoch, _, deadline, beats = parse(call('HGET', L, ARGV[1]))
if epoch then
  local left = until_us(now, tonumber(deadline))
  if left > 0 and not (epoch == ARGV[6] and beats == ARGV[7]) then
    return { now, 0, epoch, left, tonumber(beats), call('HGET', N, ARGV[1]) }
  end
end
local newest = call('HGET', M, 'e')
-- A pool that had vanished never repeats a version, so that a waiter sees the change.
if not newest then call('HSET', M, 'v', now_us()) end
epoch = next_epoch(math.max(epoch or 0, newest or call('HGET', KEYS[4], 'e') or 0), now)
call('HSET', L, ARGV[1],
  format('%s %s %.0f %.0f', epoch, ARGV[3], later_ms(now, tonumber(ARGV[4])), (beats or 0) + 1))
call('HSET', N, ARGV[1], ARGV[2] .. ' ' .. ARGV[5])
call('HSET', M, 'e', epoch)
changed(M)
return { now, 1, epoch }
