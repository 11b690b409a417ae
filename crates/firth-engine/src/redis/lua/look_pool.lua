-- KEYS: L N. ARGV: names. Per lease: its two texts; first the clock.
local found = { now_us() }
local leases, notes = call('HMGET', KEYS[1], unpack(ARGV)), call('HMGET', KEYS[2], unpack(ARGV))
for i = 1, #ARGV do found[2 * i], found[2 * i + 1] = leases[i], notes[i] end
return found
