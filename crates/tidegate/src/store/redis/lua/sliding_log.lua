-- Mirrors SlidingLog in crates/core/src/algorithm/sliding_log.rs.
-- Stored: a list of "at:before:units", oldest first. `before` is the sum of all units stored before
-- an entry, modulo 2^52, so the units between any two entries are a difference.

-- ARGV: units, limit (-1 if they can never fit), length.
local function sliding_log_args(at)
  return {
    units = ARGV[at] + 0, limit = ARGV[at + 1] + 0, length = ARGV[at + 2] + 0,
  }, at + 3
end

-- A corrupt entry has 0 units; a valid entry never does.
local function sliding_log_entry(text)
  local at, before, units = string.match(text, '^(%d+):(%d+):(%d+)$')
  at, before, units = whole(at, last_instant), whole(before, most_units), whole(units, most_units)
  if at and before and units then return at, before, units end
  corrupt = corrupt + 1
  return 0, 0, 0
end

-- Calls visit(at, before, units) from entry number `from` on, until it returns true.
local function sliding_log_walk(key, from, visit)
  local many = 4
  while true do
    local entries = redis.call('LRANGE', key, from, from + many - 1)
    for _, text in ipairs(entries) do
      if visit(sliding_log_entry(text)) then return end
    end
    if #entries < many then return end
    from, many = from + many, 256
  end
end

local function sliding_log_empty(args)
  return {
    length = args.length, sum = 0, newest = 0, expired = 0, added = 0, first = 0, after = 0,
    oldest = 0,
  }
end

-- `expired` entries have left the window or are corrupt, and have no weight; saving adds the units
-- in `added`.
local function sliding_log_open(key, args)
  local state = sliding_log_empty(args)
  local last = redis.pcall('LINDEX', key, -1)
  if is_wrong_type(last, 'LINDEX', key, -1) then return spoil(state) end
  if not last then return state end
  local newest, before, units = sliding_log_entry(last)
  state.newest, state.future = newest, newest > now
  sliding_log_walk(key, 0, function(at, sum, weight)
    if weight > 0 and at + args.length > now then
      state.oldest, state.first = at, sum
      state.after = (before + units) % 4503599627370496
      return true
    end
    state.expired = state.expired + 1
  end)
  -- The newest entry is the last, and every entry has units.
  if state.oldest > newest or units == 0 then return spoil(sliding_log_empty(args)) end
  state.sum = (state.after - state.first) % 4503599627370496
  return state
end

-- Returns a short log that gives the same decision as the whole log: the entries that must leave
-- before the units fit, combined at the time of the last of them, and the rest at the time of the
-- newest.
local function sliding_log_answer(state, args, key)
  local missing = state.sum + args.units - args.limit
  if state.sum == 0 then return append(0) end
  if missing <= 0 or args.limit < 0 then
    append(1)
    append(state.newest)
    return append(state.sum)
  end
  local free_at, freed = state.newest, state.sum
  if missing <= state.sum - state.added then
    sliding_log_walk(key, state.expired, function(at, before, units)
      -- No script writes entries that are out of order or do not add up.
      if units == 0 then return false end
      free_at = math.max(math.min(at, state.newest), state.oldest)
      freed = math.min((before + units - state.first) % 4503599627370496, state.sum)
      return freed >= missing
    end)
    if freed < missing then free_at, freed = state.newest, state.sum end
  end
  append(2)
  append(free_at)
  append(freed)
  append(state.newest)
  append(state.sum - freed)
end

local function sliding_log_try(state, args, takes)
  if state.sum + args.units > args.limit then return false end
  if takes then
    state.sum, state.added = state.sum + args.units, state.added + args.units
    state.newest, state.dirty = now, true
  end
  return true
end

local function sliding_log_deny(state)
  if state.future then state.newest, state.dirty = now, true end
end

-- Drops expired entries, sets future times to now, and adds the units taken.
local function sliding_log_save(key, state)
  if state.expired > 0 then redis.call('LTRIM', key, state.expired, -1) end
  local before, units = state.after, state.added
  local last = redis.call('LINDEX', key, -1)
  while last do
    local at, sum, weight = sliding_log_entry(last)
    if at < now then break end
    before, units = sum, units + weight
    redis.call('RPOP', key)
    last = redis.call('LINDEX', key, -1)
  end
  if units > 0 then
    redis.call('RPUSH', key, string.format('%.0f:%.0f:%.0f', now, before, units))
    redis.call('PEXPIRE', key, ttl(now + state.length))
  end
end
-- Only batches need the rest.

-- Removes the newest units.
local function sliding_log_give(state, args, key)
  sliding_log_save(key, state)
  local units = args.units
  local last = redis.call('LINDEX', key, -1)
  while last and units > 0 do
    local at, before, weight = sliding_log_entry(last)
    if weight > units then
      local left = string.format('%.0f:%.0f:%.0f', at, before, weight - units)
      redis.call('LSET', key, -1, left)
      break
    end
    redis.call('RPOP', key)
    units = units - weight
    last = redis.call('LINDEX', key, -1)
  end
  return true
end

-- The entries that are not older than a take, newest first, and their units.
local function sliding_log_later(key, taken_at)
  local later, sum, many, more = {}, 0, 4, true
  while more and #later <= 10000 do
    local known = #later
    local page = redis.call('LRANGE', key, -known - many, -known - 1)
    more, many = #page == many, 256
    for i = #page, 1, -1 do
      local at, before, units = sliding_log_entry(page[i])
      if units == 0 or math.min(at, now) < taken_at then
        more = false
        break
      end
      later[#later + 1] = { at, before, units }
      sum = sum + units
    end
  end
  return later, sum
end

-- Returns units of the take that leaves the window at `owed_until`: from the oldest entry that is not
-- older than the take. All entries since are written again, because each holds the sum before it.
local function sliding_log_owed(state, args, key)
  local taken_at = args.owed_until - args.length
  if taken_at < 0 or args.owed_until <= now then return false, args.units end
  if state.dirty then sliding_log_save(key, state) end
  local later, owed = sliding_log_later(key, taken_at)
  if owed == 0 or #later > 10000 then return state.dirty, args.units end
  if not state.dirty then
    sliding_log_save(key, state)
    later = sliding_log_later(key, taken_at)
  end
  redis.call('LTRIM', key, 0, -#later - 1)
  local before, left = later[#later][2], args.units
  for i = #later, 1, -1 do
    local at, units = later[i][1], later[i][3]
    local gone = math.min(units, left)
    left, units = left - gone, units - gone
    if units > 0 then
      redis.call('RPUSH', key, string.format('%.0f:%.0f:%.0f', at, before, units))
      before = (before + units) % 4503599627370496
    end
  end
  redis.call('PEXPIRE', key, ttl(now + args.length))
  return true, left
end

-- When a log that was just charged is empty.
local function sliding_log_idle(_, args)
  return now + args.length
end

-- Undoes a take if no units were taken since: only the newest entry can change.
local function sliding_log_undo(state, args, key)
  if state.newest ~= args.taken_at or state.future then return end
  if state.dirty then sliding_log_save(key, state) end
  local _, _, weight = sliding_log_entry(redis.call('LINDEX', key, -1))
  return sliding_log_give(state, { units = math.min(args.units, weight) }, key)
end

local function sliding_log_force(state, args)
  local booked = math.min(args.units, math.max(args.limit - state.sum, 0))
  if booked > 0 then
    state.sum, state.added = state.sum + booked, state.added + booked
    state.newest, state.dirty = now, true
  elseif state.future then
    state.newest, state.dirty = now, true
  end
  return false, args.units - booked
end

local function sliding_log_reset(_, _, key)
  redis.call('DEL', key)
  return true
end

-- Returns everything stored, for inspection. Of a long log, returns the oldest entries, and the
-- rest combined at the time of the newest, so that sums and instants are right.
local function sliding_log_dump(state, _, key)
  if state.corrupt then return append(0) end
  local entries, rest = redis.call('LRANGE', key, 0, 9999), 0
  if #entries == 10000 then
    entries = redis.call('LRANGE', key, state.expired, state.expired + 9998)
    rest = state.sum
  end
  append(#entries)
  local index = reply_length
  for _, text in ipairs(entries) do
    local at, _, units = sliding_log_entry(text)
    rest = rest - units
    append(at)
    append(units)
  end
  if rest > 0 then
    reply[index] = #entries + 1
    append(state.newest)
    append(rest)
  end
end

local sliding_log = {
  args = sliding_log_args, open = sliding_log_open, answer = sliding_log_answer,
  try = sliding_log_try, deny = sliding_log_deny, save = sliding_log_save, give = sliding_log_give,
  force = sliding_log_force, reset = sliding_log_reset, undo = sliding_log_undo, dump = sliding_log_dump,
  owed = sliding_log_owed, idle = sliding_log_idle,
}
