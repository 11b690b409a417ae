-- KEYS: L N M. ARGV: names. Per lease: its two texts; first the time.
local found = { read_time(call('HGET', KEYS[3], 'c')) }
local leases, notes = call('HMGET', KEYS[1], unpack(ARGV)), call('HMGET', KEYS[2], unpack(ARGV))
for i = 1, #ARGV do found[2 * i], found[2 * i + 1] = leases[i], notes[i] end
return found
