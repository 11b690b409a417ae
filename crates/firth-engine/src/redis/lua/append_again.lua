-- KEYS: P S G X T B. ARGV: id and blob of each dead letter, with its origin.
local P, S, G, X, T, B = unpack(KEYS)
local head = call('HMGET', P, 'l', 'v', 'm', 'c')
if not head[1] then return 'nopart' end
if call('HEXISTS', G, 'f') == 0 then return 'nogroup' end
local ids, blobs = {}, {}
for i = 1, #ARGV, 2 do
  if call('HEXISTS', B, ARGV[i]) == 1 then
    ids[#ids + 1], blobs[#blobs + 1] = ARGV[i], ARGV[i + 1]
  end
end
if #ids == 0 then return 0 end
write_blobs(P, S, read_time(head[4]), head, blobs, 1)
call('ZREM', X, unpack(ids))
call('ZREM', T, unpack(ids))
call('HDEL', B, unpack(ids))
return #ids
