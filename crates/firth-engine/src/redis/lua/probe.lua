-- KEYS: a string key of our own. Tries every command that the scripts use, on a key of the wrong
-- type, and names those that the server refuses for another reason. Nothing is left behind.
local key, missing = KEYS[1], {}
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err and not match(answer.err, '^WRONGTYPE') then
    missing[#missing + 1] = string.lower((...))
  end
end
try('TIME')
try('INCR', key)
try('EXISTS', key)
for _, name in ipairs({ 'HGET', 'HEXISTS', 'HMGET', 'HDEL', 'ZSCORE', 'ZMSCORE', 'ZREM' }) do
  try(name, key, 'x')
end
for _, name in ipairs({ 'HKEYS', 'HGETALL', 'ZCARD', 'ZPOPMIN' }) do try(name, key) end
try('HSET', key, 'x', 1)
try('HSETNX', key, 'x', 1)
try('HINCRBY', key, 'x', 1)
try('ZADD', key, 1, 'x')
try('ZRANGE', key, 0, 0)
try('ZCOUNT', key, 0, 0)
try('ZRANGEBYSCORE', key, 0, 0)
try('ZREVRANGEBYSCORE', key, 0, 0)
try('ZRANGEBYLEX', key, '-', '+')
try('XADD', key, '*', 'r', '')
try('XRANGE', key, '-', '+', 'COUNT', 1)
try('XREVRANGE', key, '+', '-', 'COUNT', 1)
try('UNLINK', key)
return missing
