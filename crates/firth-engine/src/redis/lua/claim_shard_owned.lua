-- ARGV: number, token, how many to skip, how many at most. Name and epoch of each claim.
if not of_member(ARGV[1], ARGV[2]) then return 'fenced' end
local names, found = call('ZRANGEBYSCORE', O, ARGV[1], ARGV[1], 'LIMIT', ARGV[3], ARGV[4]), {}
if #names == 0 then return found end
for i, text in ipairs(call('HMGET', H, unpack(names))) do
  found[2 * i - 1], found[2 * i] = names[i], match(text, '^%d+')
end
return found
