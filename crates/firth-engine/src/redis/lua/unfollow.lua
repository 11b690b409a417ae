-- KEYS: P.
if call('HGET', KEYS[1], 'l') == '0-0' then call('HDEL', KEYS[1], 'as', 'ai', 'ak', 'ap', 'ax', 'aw') end
return 1
