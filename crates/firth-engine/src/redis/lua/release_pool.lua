-- KEYS: L N M E. ARGV: name, and epoch and token of the holder; or the name alone to take the lease
-- away from its holder. With its last lease the pool vanishes: E keeps the newest epoch of all
-- vanished pools of its slot.
local L, N, M, E = unpack(KEYS)
local epoch, token = parse(call('HGET', L, ARGV[1]))
if not epoch then return 0 end
local newest = math.max(epoch, call('HGET', M, 'e') or 0)
if ARGV[2] then
  if epoch ~= ARGV[2] or token ~= ARGV[3] then return 0 end
else
  newest = next_epoch(newest, now_us())
  call('HSET', M, 'e', newest)
end
call('HDEL', L, ARGV[1])
call('HDEL', N, ARGV[1])
if call('EXISTS', L) == 0 then
  call('HSET', E, 'e', format('%.0f', math.max(newest, call('HGET', E, 'e') or 0)))
  call('UNLINK', M)
else
  changed(M)
end
return 1
