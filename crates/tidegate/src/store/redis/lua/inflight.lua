-- Mirrors InFlight in crates/core/src/algorithm/inflight.rs.
-- Stored: a sorted set of lease ids by the instant they expire. Scores below 0 hold the rest: '#'
-- the units of all leases, '@' the newest id, and 'w' before an id the units of a lease of several.

-- ARGV: units (or a lease id), limit (-1 if they can never fit), time to live, and whether leases
-- that expire later than one taken now are cut short.
local function inflight_args(at)
  return {
    units = ARGV[at] + 0, lease = ARGV[at], limit = ARGV[at + 1] + 0,
    length = ARGV[at + 2] + 0, latest = now + ARGV[at + 2], repairs = ARGV[at + 3] == '1',
  }, at + 4
end

local function inflight_weight(score)
  local units = whole(-(score or -1), most_units)
  return units and units > 0 and units or 1
end

local function inflight_units(key, id)
  return inflight_weight(redis.call('ZSCORE', key, 'w' .. id))
end

-- A score may be any number, even infinite.
local function inflight_instant(score)
  return math.max(math.min(math.ceil(tonumber(score)), last_instant), 0)
end

-- The units of each of these leases, and their sum.
local function inflight_weigh(key, ids, first)
  local names, sum = {}, 0
  for i = first, math.min(first + 999, #ids) do names[#names + 1] = 'w' .. ids[i] end
  local units = redis.call('ZMSCORE', key, unpack(names))
  for i = 1, #names do
    units[i] = inflight_weight(units[i])
    sum = sum + units[i]
  end
  return sum, units
end

-- The units of expired leases beyond the first thousand. If no lease holds several units, which is
-- usual, it is enough to count them.
local function inflight_late(key, count)
  if redis.call('ZCOUNT', key, '-inf', '(0') == 2 then return count - 1000 end
  local ids, sum = redis.call('ZRANGEBYSCORE', key, 0, now, 'LIMIT', 1000, -1), 0
  for first = 1, #ids, 1000 do sum = sum + inflight_weigh(key, ids, first) end
  return sum
end

local function inflight_empty(args)
  return {
    length = args.length, latest = args.latest, held = 0, newest = 0, last = 0, new = 0,
    late = 0,
  }
end

local function inflight_open(key, args)
  local state = inflight_empty(args)
  local head = redis.pcall('ZMSCORE', key, '#', '@')
  if is_wrong_type(head, 'ZMSCORE', key, '#', '@') then return spoil(state) end
  if not head[1] then
    return redis.call('ZCOUNT', key, '-inf', '+inf') > 0 and spoil(state) or state
  end
  local held, last = whole(-1 - head[1], most_units), whole(-(head[2] or 1), last_instant)
  if not held or not last then return spoil(state) end
  state.held, state.last = held, last
  local count = redis.call('ZCOUNT', key, 0, now)
  if count > 0 then
    -- The most expired leases that one call removes.
    state.expired = redis.call('ZRANGEBYSCORE', key, 0, now, 'LIMIT', 0, 1000)
    local sum
    sum, state.weights = inflight_weigh(key, state.expired, 1)
    if count > 1000 then state.late = inflight_late(key, count) end
    state.held = state.held - sum - state.late
  end
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  state.newest = inflight_instant(newest[2])
  -- The sum does not match the leases.
  if state.held < 0 or state.held > 0 and state.newest <= now then
    return spoil(inflight_empty(args))
  end
  state.stale = state.newest > args.latest
  state.repairs = args.repairs
  return state
end

-- Returns the newest id, and a short list of leases that gives the same decision as all leases:
-- those that must expire before the units fit, combined at the expiry of the last of them, and the
-- rest at the expiry of the newest.
local function inflight_answer(state, args, key)
  append(state.last)
  local missing = state.held + args.units - args.limit
  if state.held == 0 then return append(0) end
  if missing <= 0 or args.limit < 0 then
    append(1)
    append(state.newest)
    return append(state.held)
  end
  local free_at, freed, from = state.newest, 0, 0
  repeat
    local after = '(' .. string.format('%.0f', now)
    local page =
      redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', from, 64)
    for i = 1, #page, 2 do
      free_at, freed = inflight_instant(page[i + 1]), freed + inflight_units(key, page[i])
      if freed >= missing then break end
    end
    from = from + 64
  until freed >= missing or #page < 128
  -- Units taken earlier in this call are not saved yet; they expire last.
  if freed < missing then free_at, freed = state.newest, state.held end
  freed = math.min(freed, state.held)
  append(2)
  append(free_at)
  append(freed)
  append(state.newest)
  append(state.held - freed)
end

local function inflight_take(state, units)
  state.last = math.max(state.last + 1, now)
  state.new = state.new + 1
  state[state.new] = { string.format('%.0f', state.last), units }
  state.newest = math.max(state.newest, state.latest)
  state.held, state.dirty = state.held + units, true
end

local function inflight_try(state, args, takes)
  if state.held + args.units > args.limit then return false end
  if takes then inflight_take(state, args.units) end
  return true
end

local function inflight_deny(state)
  if state.stale and state.repairs then state.dirty = true end
end

local function inflight_save(key, state)
  if state.expired then
    local gone = {}
    for i, id in ipairs(state.expired) do
      gone[#gone + 1] = id
      if state.weights[i] > 1 then gone[#gone + 1] = 'w' .. id end
    end
    redis.call('ZREM', key, unpack(gone))
  end
  if state.stale and state.repairs then
    local after = '(' .. string.format('%.0f', state.latest)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, after, '+inf')) do
      redis.call('ZADD', key, state.latest, id)
    end
    state.newest = state.latest
  end
  for i = 1, state.new do
    local id, units = state[i][1], state[i][2]
    redis.call('ZADD', key, state.latest, id)
    if units > 1 then redis.call('ZADD', key, -units, 'w' .. id) end
  end
  redis.call('ZADD', key, -1 - state.held - state.late, '#', -state.last, '@')
  redis.call('PEXPIRE', key, ttl(math.max(state.newest, state.last + 1)))
end
-- Only batches need the rest.

-- Units are returned by releasing their lease only.
local function inflight_give()
  return false
end

local function inflight_force(state, args)
  local booked = math.min(args.units, math.max(args.limit - state.held, 0))
  if booked > 0 then
    inflight_take(state, booked)
    return false, args.units - booked, state.last
  end
  inflight_deny(state)
  return false, args.units - booked
end

-- Frees the units of a lease, even an expired one, because its holder is done.
local function inflight_release(state, args, key)
  if state.dirty then inflight_save(key, state) end
  local id = args.lease
  local units = inflight_units(key, id)
  if redis.call('ZREM', key, id) == 1 then
    redis.call('ZREM', key, 'w' .. id)
    redis.call('ZINCRBY', key, units, '#')
  end
  return true
end

local function inflight_renew(state, args, key)
  if state.dirty then inflight_save(key, state) end
  local ends = redis.call('ZSCORE', key, args.lease)
  if not ends or tonumber(ends) <= now then return true, 0, 0 end
  if not state.dirty then inflight_save(key, state) end
  redis.call('ZADD', key, args.latest, args.lease)
  redis.call('PEXPIRE', key, ttl(math.max(args.latest, state.newest, state.last + 1)))
  return true, 0, args.units
end

-- Deletes all leases; ids still only grow.
local function inflight_reset(state, _, key)
  redis.call('DEL', key)
  if state.last > 0 then
    redis.call('ZADD', key, -1, '#', -state.last, '@')
    redis.call('PEXPIRE', key, ttl(state.last + 1))
  end
  return true
end

-- Returns everything stored, for inspection. Of many leases, returns those that expire first, and
-- the rest combined as the newest, so that sums and instants are right.
local function inflight_dump(state, _, key)
  append(state.last)
  if state.corrupt then return append(0) end
  local all = { key, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 10000 }
  local leases, rest = redis.call('ZRANGEBYSCORE', unpack(all)), 0
  if #leases == 20000 then
    all[2], all[7], rest = '(' .. string.format('%.0f', now), 9999, state.held
    leases = redis.call('ZRANGEBYSCORE', unpack(all))
  end
  append(#leases / 2)
  local index = reply_length
  for i = 1, #leases, 2 do
    local units = inflight_units(key, leases[i])
    rest = rest - units
    append(whole(leases[i], last_instant) or 0)
    append(inflight_instant(leases[i + 1]))
    append(units)
  end
  if rest > 0 then
    reply[index] = #leases / 2 + 1
    append(whole(redis.call('ZREVRANGE', key, 0, 0)[1], last_instant) or 0)
    append(state.newest)
    append(rest)
  end
end

local inflight = {
  args = inflight_args, open = inflight_open, answer = inflight_answer, try = inflight_try,
  deny = inflight_deny, save = inflight_save, give = inflight_give, force = inflight_force,
  release = inflight_release, renew = inflight_renew, reset = inflight_reset, dump = inflight_dump,
}
