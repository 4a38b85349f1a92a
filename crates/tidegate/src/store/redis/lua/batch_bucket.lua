-- Takes on buckets, each key once: the common batch, without a table per state.
-- ARGV: the number of argument lists, whether words follow, and per list the numbers of a single
-- bucket; then one word per key as in batch.lua, or none if all would be 0.
-- Reply: as in batch.lua.
local keys, at = KEYS, 2
local args_list, has_words = {}, ARGV[2] == '1'
for args = 0, ARGV[1] - 1 do
  args_list[args] = {
    ARGV[at + 1] + 0, ARGV[at + 2] + 0, now + ARGV[at + 3], ARGV[at + 4] + 0, ARGV[at + 5] + 0,
    ARGV[at + 6] == '1',
  }
  at = at + 6
end
local cost, cost_part, ceiling, ceiling_part, den, repairs = unpack(args_list[0])

-- Reads everything before any write, so that a failed read fails the call before it has changed
-- anything.
local reply, instants, parts, first, allowed = { now }, {}, {}, 1, true
for i = 1, #keys do
  local times, more = 1, false
  if has_words then
    local word = ARGV[at + i] + 0
    more = word % 2 == 1
    word = (word - word % 2) / 2
    local args = word % 256
    times = (word - args) / 256 + 1
    cost, cost_part, ceiling, ceiling_part, den, repairs = unpack(args_list[args])
  end
  local ticks, part = bucket_read(keys[i])
  -- The result of `bucket_take` for whole microseconds if the cost fits.
  local fits, after, after_part, writes = true, (ticks > now and ticks or now) + cost, 0, true
  if part + cost_part > 0 or after > ceiling then
    fits, after, after_part, writes =
      bucket_take(ticks, part, cost, cost_part, ceiling, ceiling_part, den)
  end
  local admitted = fits and 1 or 0
  while fits and admitted < times do
    local next, next_part
    fits, next, next_part =
      bucket_take(after, after_part, cost, cost_part, ceiling, ceiling_part, den)
    if fits then after, after_part, admitted = next, next_part, admitted + 1 end
  end
  reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = admitted, ticks, part
  if writes and (admitted > 0 or repairs) then instants[i], parts[i] = after, after_part end
  allowed = allowed and admitted > 0
  if not more then
    -- In a denied group, charges that would have fitted are not taken.
    if not allowed and first < i then
      for n = first, i do
        if reply[3 * n - 1] == 1 then instants[n] = nil end
      end
    end
    first, allowed = i + 1, true
  end
end
for i = 1, #keys do
  if instants[i] then bucket_keep(keys[i], instants[i], parts[i]) end
end
if corrupt > 0 then reply[#reply + 1] = corrupt end
return reply
