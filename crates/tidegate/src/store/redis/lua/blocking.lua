-- Mirrors Blocking in crates/core/src/algorithm/blocking.rs.
-- Stored: the state of the rate under the key, as its family stores it, and beside it "from:until" of
-- the block, under the key with ':block' at its end. Both have the same hash tag, and so one slot.

-- ARGV: how long a denial blocks (0: the cost never fits; -1: it is 0, and no block denies it; for
-- `block`: how long from now), the family of the rate, and the numbers of the rate.
local function blocking_args(at)
  local rate = families[ARGV[at + 1]]
  local args, next_at = rate.args(at + 2)
  args.rate, args.block_for = rate, ARGV[at] + 0
  return args, next_at
end

local function blocking_open(key, args)
  local state = args.rate.open(key, args)
  state.rate, state.block_key, state.from, state.till = args.rate, key .. ':block', 0, 0
  local kept = get(state.block_key)
  if kept then
    local from, till = string.match(tostring(kept), '^(%d+):(%d+)$')
    from, till = whole(from, last_instant), whole(till, last_instant)
    -- A text that no script wrote counts as no block, and the next block replaces it.
    if from and till then state.from, state.till = from, till else corrupt = corrupt + 1 end
  end
  return state
end

local function blocking_answer(state, args, key)
  append(state.from)
  append(state.till)
  state.rate.answer(state, args, key)
end

-- The end of the block as seen from now: one that was set later than now lasts as long from now.
local function blocking_till(state)
  return math.max(state.till - math.max(state.from - now, 0), 0)
end

-- A change of the block only leaves the state of the rate as it is.
local function blocking_put(state, from, till)
  state.from, state.till, state.block_dirty = from, till, true
  state.dirty = state.dirty or 'block'
end

local function blocking_keep(state)
  if not state.block_dirty then return end
  state.block_dirty = nil
  if state.till == 0 then return redis.call('DEL', state.block_key) end
  local kept = string.format('%.0f:%.0f', state.from, state.till)
  redis.call('SET', state.block_key, kept, 'PX', ttl(state.till))
end

local function blocking_try(state, args, takes)
  if blocking_till(state) > now and args.block_for >= 0 then return false end
  return state.rate.try(state, args, takes)
end

local function blocking_deny(state, args)
  local till = blocking_till(state)
  if till > now then
    if state.from > now then blocking_put(state, now, till) end
    -- The rate repairs, but counts no request that the block denies.
    local counts = args.counts
    args.counts = false
    state.rate.deny(state, args)
    args.counts = counts
    return
  end
  state.rate.deny(state, args)
  if args.block_for > 0 then blocking_put(state, now, now + args.block_for) end
end

local function blocking_save(key, state, args)
  if state.dirty == true then state.rate.save(key, state, args) end
  blocking_keep(state)
end

local function blocking_block(state, args)
  if args.block_for > 0 then
    blocking_put(state, now, now + args.block_for)
  else
    blocking_put(state, 0, 0)
  end
end

-- An operation of the rate. A list is read again after it, so the block is written first.
local function blocking_of(name)
  return function(state, args, key)
    if state.rate.dump then blocking_keep(state) end
    return state.rate[name](state, args, key)
  end
end

local function blocking_force(state, args, key)
  if state.from > now then blocking_put(state, now, blocking_till(state)) end
  return blocking_of('force')(state, args, key)
end

local function blocking_reset(state, args, key)
  blocking_put(state, 0, 0)
  return blocking_of('reset')(state, args, key)
end

local function blocking_dump(state, args, key)
  append(state.from)
  append(state.till)
  return state.rate.dump(state, args, key)
end

local function blocking_idle(state, args)
  return state.rate.idle(state, args)
end

local blocking = {
  args = blocking_args, open = blocking_open, answer = blocking_answer, try = blocking_try,
  deny = blocking_deny, save = blocking_save, give = blocking_of('give'),
  force = blocking_force, undo = blocking_of('undo'), reset = blocking_reset,
  block = blocking_block, owed = blocking_of('owed'), idle = blocking_idle,
}
families.blocking, families.blocking_list = blocking, { dump = blocking_dump }
for name, operation in pairs(blocking) do families.blocking_list[name] = operation end
