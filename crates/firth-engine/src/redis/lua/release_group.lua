-- KEYS: G V P R. ARGV: group, epoch, token. Who releases has not crashed. If the group does not
-- exist, nothing of the lease stays but its epoch and its rank.
local G = KEYS[1]
local lease = call('HMGET', G, 'le', 'lt', 'lh', 'o', 'f', 'lr')
if fence(lease, ARGV[2], ARGV[3]) then return 0 end
if lease[5] or lease[6] then
  call('HSET', G, 'lh', '', 'ld', 0, 'ln', '')
  if lease[4] == ARGV[2] then call('HSET', G, 'x', 1) end
else
  forget_lease(KEYS[3], G, KEYS[4], ARGV[1], lease[1])
end
call('INCR', KEYS[2])
return 1
