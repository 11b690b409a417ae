-- ARGV: number, token, name, epoch, state. Answers 0 done, 1 fenced, 2 missing.
if not of_member(ARGV[1], ARGV[2]) then return 'fenced' end
local text = call('HGET', H, ARGV[3])
if not text then return 2 end
local epoch, owner = parse(text)
if owner ~= ARGV[1] or epoch ~= ARGV[4] then return 1 end
call('HSET', C, ARGV[3], ARGV[5])
return 0
