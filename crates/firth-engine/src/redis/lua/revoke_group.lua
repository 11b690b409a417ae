-- KEYS: G V P R. ARGV: group. Who is revoked has not crashed; who vanished before it still has. If
-- the group does not exist, nothing of the lease stays but its epoch and its rank.
local G = KEYS[1]
local lease = call('HMGET', G, 'le', 'o', 'f', 'lr')
if not lease[1] then return 0 end
local epoch = next_epoch(lease[1], now_us())
if lease[3] or lease[4] then
  call('HSET', G, 'le', epoch, 'lh', '', 'ld', 0, 'ln', '')
  if lease[2] == lease[1] then call('HSET', G, 'x', 1) end
else
  forget_lease(KEYS[3], G, KEYS[4], ARGV[1], epoch)
end
call('INCR', KEYS[2])
return 1
