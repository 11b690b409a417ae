-- A commit without verdicts. KEYS: P G D S. ARGV: epoch, token, frontier, ahead, newest record
-- read, reach.
local last, clock = unpack(call('HMGET', KEYS[1], 'l', 'c'))
if not last then return 'nopart' end
local g = call('HMGET', KEYS[2], 'le', 'lt', 'lh', 'f', 'a', 'cs', 'n')
local refused = fence(g, ARGV[1], ARGV[2])
if refused then return refused end
if not g[4] then return 'nogroup' end
local lost = check_seen(KEYS[1], KEYS[4], ARGV[5], last)
if lost then return lost end
local wrong, _, new, _, nseq = check_progress(last, g[4], g[5], ARGV[3], ARGV[4])
if wrong then return wrong end
local due = due_count(g[7], KEYS[3])
store_progress(KEYS[2], ARGV[3], ARGV[4], new, nseq, g[6], due, ARGV[6])
return { due, due > 0 and next_due(KEYS[3], read_time(clock)) or -1 }
