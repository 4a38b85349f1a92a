-- One charge on one bucket, without a table: most of all calls are this one.
local ticks, part = bucket_parse(redis.call('GET', KEYS[1]))
local fits, after, after_part, writes = bucket_take(ticks, part, tonumber(ARGV[1]),
  tonumber(ARGV[2]), now + ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
if writes and (fits or ARGV[6] == '1') then bucket_keep(KEYS[1], after, after_part) end
return { now, fits and 1 or 0, ticks, part }
