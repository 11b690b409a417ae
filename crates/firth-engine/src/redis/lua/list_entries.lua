-- KEYS: C I. ARGV: from, to (in the form of ZRANGEBYLEX), how many at most, how many bytes at most.
local names, bytes, found = call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3]),
  tonumber(ARGV[4]), {}
for _, name in ipairs(names) do
  local value = call('HGET', KEYS[1], name)
  found[#found + 1], found[#found + 2] = name, value
  bytes = bytes - #value
  if bytes <= 0 then break end
end
return found
