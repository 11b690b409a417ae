-- KEYS: L M. ARGV: ttl in µs, then per lease its name and the proof 'epoch token ', with which its
-- text begins.
local meta = call('HMGET', KEYS[2], 'e', 'c')
local now = keep_time(meta[1] and KEYS[2], meta[2])
local deadline, names, renewed, changes = format('%.0f ', later_ms(now, tonumber(ARGV[1]))), {},
  { now }, {}
for i = 2, #ARGV, 2 do names[#names + 1] = ARGV[i] end
for i, text in ipairs(call('HMGET', KEYS[1], unpack(names))) do
  local proof = ARGV[2 * i + 1]
  renewed[i + 1] = 0
  if text and string.find(text, proof, 1, true) == 1 then
    local n, beats = #changes, match(text, '%d+$')
    changes[n + 1], changes[n + 2] = names[i], proof .. deadline .. format('%.0f', beats + 1)
    renewed[i + 1] = 1
  end
end
if #changes > 0 then call('HSET', KEYS[1], unpack(changes)) end
return renewed
