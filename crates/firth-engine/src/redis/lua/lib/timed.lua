-- A timed script: its last two arguments are the time that the client expects and the slack of
-- that, or two empty ones. Its answer begins with the time, unless it is a refusal.
local expected, slack = tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV])
ARGV[#ARGV] = nil
ARGV[#ARGV] = nil
-- The time; `key`, if there is one, keeps it if the clock stepped, or if what is kept is old. Only
-- a client that expects something moves it on: a new one may have come right after a step.
local function keep_time(key, text)
  local wall, offset, last = now_us(), parse_clock(text)
  local now, stepped = logical(wall, offset, last, expected, slack)
  local is_believed = expected and expected + slack >= last
  if key and (stepped or is_believed and now > last + KEEP) then
    call('HSET', key, 'c', format('%.0f %.0f', now - wall, now))
  end
  return now
end
