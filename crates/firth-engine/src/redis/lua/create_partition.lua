-- KEYS: P. The version starts at the clock, so that a partition made again never repeats one.
local last = call('HGET', KEYS[1], 'l')
if last then
  -- Left behind by an adoption that a crash ended: nobody wants it to follow a stream any more.
  if last == '0-0' then call('HDEL', KEYS[1], 'as', 'ai', 'ak', 'ap', 'ax', 'aw') end
  return 0
end
call('HSET', KEYS[1], 'l', '0-0', 't', '0-0', 'v', now_us(), 'm', 0, 'y', 0, 'n', 0)
return 1
