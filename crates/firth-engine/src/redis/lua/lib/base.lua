-- What every script uses: shorter names, and reading of numbers.
local call, format, match = redis.call, string.format, string.match
-- Numbers below 2^53 are exact; printing them needs a format, because tostring rounds to 14 digits.
local function split(id)
  local ms, seq = match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function join(ms, seq) return format('%.0f-%.0f', ms, seq) end
local function now_us()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end
-- The millisecond that lies `after` microseconds from now, rounded up: never early.
local function later_ms(now, after)
  if after == 0 then return math.floor(now / 1000) end
  return math.ceil((now + after) / 1000)
end
local function until_us(now, ms) return math.max(ms * 1000 - now, 0) end
