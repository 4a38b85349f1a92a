-- GCRA and nothing else, as one would write it by hand. The key holds the instant at which all
-- units are back. ARGV: microseconds per unit, microseconds of all units, units wanted.
-- Reply: allowed, remaining, milliseconds until it fits, milliseconds until all units are back.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local full = tonumber(redis.call('GET', KEYS[1]) or now)
if full < now then full = now end
local after = full + interval * ARGV[3]
local used = after - now
if used > most then
  local reset = full - now
  return {
    0, math.floor((most - reset) / interval), math.ceil((used - most) / 1000),
    math.ceil(reset / 1000),
  }
end
local reset = math.ceil(used / 1000)
redis.call('SET', KEYS[1], after, 'PX', reset)
return { 1, math.floor((most - used) / interval), 0, reset }
