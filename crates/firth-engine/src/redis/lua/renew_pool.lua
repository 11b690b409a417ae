-- KEYS: L. ARGV: ttl in µs, then name, epoch and token of each.
local deadline, names, renewed, changes = later_ms(now_us(), tonumber(ARGV[1])), {}, {}, {}
for i = 2, #ARGV, 3 do names[#names + 1] = ARGV[i] end
for i, text in ipairs(call('HMGET', KEYS[1], unpack(names))) do
  local epoch, token, _, beats = parse(text)
  if epoch == ARGV[3 * i] and token == ARGV[3 * i + 1] then
    changes[#changes + 1], changes[#changes + 2] = names[i], format('%s %s %.0f %.0f', epoch, token, deadline, beats + 1)
    renewed[i] = 1
  else
    renewed[i] = 0
  end
end
if #changes > 0 then call('HSET', KEYS[1], unpack(changes)) end
return renewed
