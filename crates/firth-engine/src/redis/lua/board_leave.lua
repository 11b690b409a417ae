-- ARGV: number, token.
local me = seated(ARGV[1], ARGV[2])
if not me then return 0 end
depart(ARGV[1], me, '2', math.floor(now_us() / 1000))
return 1
