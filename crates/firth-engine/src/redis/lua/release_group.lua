-- KEYS: G V. ARGV: epoch, token. Who releases has not crashed.
local lease = call('HMGET', KEYS[1], 'le', 'lt', 'lh', 'o')
if fence(lease, ARGV[1], ARGV[2]) then return 0 end
call('HSET', KEYS[1], 'lh', '', 'ld', 0, 'ln', '')
if lease[4] == ARGV[1] then call('HSET', KEYS[1], 'x', 1) end
call('INCR', KEYS[2])
return 1
