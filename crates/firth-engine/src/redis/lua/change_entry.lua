-- KEYS: C I V. ARGV: name, what must be there ('any', 'absent' or a version), and the value, or
-- nothing to remove it.
local C, I, V = KEYS[1], KEYS[2], KEYS[3]
local current = call('HGET', C, ARGV[1])
if ARGV[2] == 'absent' then
  if current then return { 0, current } end
elseif ARGV[2] ~= 'any' then
  if not current then return { 0 } end
  if match(current, '^%d+') ~= ARGV[2] then return { 0, current } end
end
local version = call('INCR', V)
if ARGV[3] then
  call('HSET', C, ARGV[1], format('%.0f ', version) .. ARGV[3])
  call('ZADD', I, 0, ARGV[1])
else
  call('HDEL', C, ARGV[1])
  call('ZREM', I, ARGV[1])
end
return { 1, version }
