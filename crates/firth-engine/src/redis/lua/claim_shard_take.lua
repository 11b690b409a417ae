-- ARGV: number, token, name, 1 to take it even from a live owner. Answers 0 missing, 1 held (by
-- whom, how long), 2 granted.
local number, me, name = ARGV[1], of_member(ARGV[1], ARGV[2]), ARGV[3]
if not me then return 'fenced' end
local now = keep_time(M, call('HGET', M, 'c'))
local ms = math.floor(now / 1000)
sweep(ms, number)
local text = call('HGET', H, name)
if not text then return { now, 0 } end
local _, owner = parse(text)
local m, kind = owner ~= '0' and member(owner), 0
if m and m.presence ~= '0' then
  kind = tonumber(m.presence)
elseif m then
  local left = until_us(now, tonumber(call('ZSCORE', D, owner)))
  if left > 0 or owner == number then
    if owner == number or ARGV[4] ~= '1' then return { now, 1, m.name, left } end
    lose(owner)
  else
    depart(owner, m, '1', ms)
    kind = 1
  end
end
return { now, 2, hand_over(number, me, now, { name }, { kind }, { text }, 1) }
