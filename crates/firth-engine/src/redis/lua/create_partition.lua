-- KEYS: P. The version starts at the clock, so that a partition made again never repeats one.
if call('HEXISTS', KEYS[1], 'l') == 1 then return 0 end
call('HSET', KEYS[1], 'l', '0-0', 't', '0-0', 'v', now_us(), 'm', 0, 'y', 0, 'n', 0)
return 1
