-- One charge on one bucket, without a table.
-- ARGV: ticks and part of the cost, ticks and part of a full refill, the parts of a tick, and
-- whether to repair a state that these numbers cannot have left.
local ticks, part = bucket_read(KEYS[1])
local fits, after, after_part, writes = bucket_take(ticks, part, ARGV[1] + 0, ARGV[2] + 0,
  now + ARGV[3], ARGV[4] + 0, ARGV[5] + 0)
if writes and (fits or ARGV[6] == '1') then bucket_keep(KEYS[1], after, after_part) end
return { now, fits and 1 or 0, ticks, part, corrupt > 0 and corrupt or nil }
