-- KEYS: L N M. ARGV: name, and epoch and token of the holder, or nothing to take it away from whoever has it.
local epoch, token = parse(call('HGET', KEYS[1], ARGV[1]))
if not epoch then return 0 end
if ARGV[2] then
  if epoch ~= ARGV[2] or token ~= ARGV[3] then return 0 end
else
  call('HSET', KEYS[3], 'e', next_epoch(math.max(epoch, call('HGET', KEYS[3], 'e') or 0), now_us()))
end
call('HDEL', KEYS[1], ARGV[1])
call('HDEL', KEYS[2], ARGV[1])
changed(KEYS[3])
return 1
