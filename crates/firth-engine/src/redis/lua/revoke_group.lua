-- KEYS: G V. Who is revoked has not crashed; who vanished before it still has.
local lease = call('HMGET', KEYS[1], 'le', 'o')
if not lease[1] then return 0 end
call('HSET', KEYS[1], 'le', next_epoch(lease[1], now_us()), 'lh', '', 'ld', 0, 'ln', '')
if lease[2] == lease[1] then call('HSET', KEYS[1], 'x', 1) end
call('INCR', KEYS[2])
return 1
