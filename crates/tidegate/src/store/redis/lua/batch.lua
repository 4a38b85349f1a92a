-- Decides many charges, one per key, in order. A group of charges is taken all or nothing.
-- ARGV: the number of argument lists; each list as family, operation and the family's numbers, and
-- for `undo` the time of the take, for `owed` until when the units are owed, for `reserve` the id of
-- the reservation, for `close` that and the operation to carry out; then one number per key: ((times - 1) * 256 + list - 1) * 2 + 1
-- if the next key is of the same group.
-- Reply: the time, and per charge how often it was admitted and the state it was decided on.
local args_list, at, early = {}, 2, false
-- Milliseconds that a reservation is kept.
local reservation_ttl = 3600000
for number = 1, ARGV[1] + 0 do
  local family, op = families[ARGV[at]], ARGV[at + 1]
  local args
  args, at = family.args(at + 2)
  args.family, args.op, args.takes = family, op, op == 'take' or op == 'reserve'
  if op == 'undo' then
    args.taken_at, at = tonumber(ARGV[at]), at + 1
  elseif op == 'owed' then
    args.owed_until, at = tonumber(ARGV[at]), at + 1
  elseif op == 'reserve' then
    args.reservation, at = ARGV[at], at + 1
  elseif op == 'close' then
    args.reservation, args.settles, at = ARGV[at], ARGV[at + 1], at + 2
    -- It is deleted before the state is written.
    early = true
  end
  args_list[number] = args
  -- Lists and sets return all entries, and may be written before the end.
  early = early or family.dump
end

-- States are read on first use and written once at the end, so that a failed read fails the call
-- before any write.
local states, order = {}, {}

local function save(key)
  local state = states[key]
  if state.dirty then state.family.save(key, state, state.args) end
end

local function open(key, args)
  local state = states[key]
  if not state or state.length ~= args.length then
    if state then save(key) else order[#order + 1] = key end
    state = args.family.open(key, args)
    state.family, state.args = args.family, args
    states[key] = state
  end
  -- Operations that only read change nothing, not even this.
  if state.corrupt and args.op ~= 'read' and args.op ~= 'dump' then
    redis.call('DEL', key)
    state.corrupt = nil
  end
  return state
end

-- Reservations of admitted takes, and until when their units are owed. They are stored under the
-- limit's key with ':open:' and the id at its end.
local opened = {}

local function reserve(key, args, idle)
  opened[#opened + 1] = { key .. ':open:' .. args.reservation, idle }
end

-- Repeated takes on one key: all are decided from the first answer.
local function decide_alone(key, args, times)
  local family, state, admitted = args.family, open(key, args), 0
  append(0)
  local index = reply_length
  family.answer(state, args, key)
  while admitted < times and family.try(state, args, args.takes) do
    admitted = admitted + 1
  end
  if args.takes then
    for _ = admitted + 1, times do family.deny(state, args) end
    if admitted > 0 and args.reservation then reserve(key, args, family.idle(state, args)) end
  end
  reply[index] = admitted
end

-- Arguments that read a state and take nothing.
local nothing = { units = 0, limit = -1 }

-- Operations that are never denied. Lists and sets change at once and return the state afterwards.
local function carry_out(key, args, op)
  local family, state = args.family, open(key, args)
  local operate = family[op]
  if op == 'dump' then
    -- Units taken earlier in this call are saved first, so that they are included.
    if operate and state.dirty then
      save(key)
      states[key] = nil
      state = open(key, args)
    end
    if operate then return operate(state, args, key) end
    return family.answer(state, args, key)
  end
  if not family.dump then
    family.answer(state, args, key)
    return operate(state, args)
  end
  local stale, unbooked, lease = operate(state, args, key)
  if stale then
    states[key] = family.open(key, args)
    state = states[key]
    state.family, state.args = family, args
  end
  append(unbooked or 0)
  append(lease or 0)
  family.answer(state, nothing, key)
end

-- Closes a reservation: its operation is carried out if it was open.
local function close(key, args)
  local name, state = key .. ':open:' .. args.reservation, open(key, args)
  local kept = get(name)
  args.owed_until = kept and whole(kept, last_instant) or 0
  append(args.owed_until)
  if kept then redis.call('DEL', name) end
  if args.owed_until == 0 or args.settles == 'read' then
    return args.family.answer(state, nothing, key)
  end
  carry_out(key, args, args.settles)
end

-- Decides charges first..last all or nothing. If one is denied, each returns its own state, and
-- only those that deny write what a denial writes.
local function decide_together(first, last, args_of)
  local kept, seen, idle, allowed, start = {}, {}, {}, true, reply_length
  for i = first, last do
    local key, args = KEYS[i], args_of(i)
    local state = open(key, args)
    if not kept[key] then
      kept[key] = {}
      for field, value in pairs(state) do kept[key][field] = value end
    end
    local index = reply_length + 1
    append(0)
    args.family.answer(state, args, key)
    if args.family.try(state, args, args.takes) then reply[index] = 1 else allowed = false end
    if args.op == 'reserve' then idle[i] = args.family.idle(state, args) end
    seen[i] = { reply[index], unpack(reply, index + 1, reply_length) }
  end
  if allowed then
    for i = first, last do
      if idle[i] then reserve(KEYS[i], args_of(i), idle[i]) end
    end
    return
  end
  for i = reply_length, start + 1, -1 do reply[i] = nil end
  reply_length = start
  for key, fields in pairs(kept) do
    local state = states[key]
    for field in pairs(state) do state[field] = nil end
    for field, value in pairs(fields) do state[field] = value end
  end
  for i = first, last do
    local key, args = KEYS[i], args_of(i)
    local family, state = args.family, states[key]
    local fitted, fits = seen[i][1] == 1, family.try(state, args, false)
    if fits and not fitted then
      -- Only an earlier charge on the same key caused the denial.
      for _, number in ipairs(seen[i]) do append(number) end
    else
      -- 2: it fitted, but the denial of an earlier charge on the same key was counted.
      append(fits and 1 or fitted and 2 or 0)
      family.answer(state, args, key)
      if not fits and args.takes then family.deny(state, args) end
    end
  end
end

local function word(i)
  local number = ARGV[at + i - 1] + 0
  local more = number % 2
  number = (number - more) / 2
  local args = number % 256
  return args_list[args + 1], (number - args) / 256 + 1, more == 1
end

if early then
  for i = 1, #KEYS do
    if not states[KEYS[i]] then open(KEYS[i], (word(i))) end
  end
end
local i = 1
while i <= #KEYS do
  local args, times, more = word(i)
  if more then
    local first = i
    while more do
      i = i + 1
      more = select(3, word(i))
    end
    decide_together(first, i, function(n) return (word(n)) end)
  elseif args.takes or args.op == 'read' then
    decide_alone(KEYS[i], args, times)
  elseif args.op == 'close' then
    close(KEYS[i], args)
  else
    carry_out(KEYS[i], args, args.op)
  end
  i = i + 1
end
for _, key in ipairs(order) do save(key) end
for _, it in ipairs(opened) do
  redis.call('SET', it[1], string.format('%.0f', it[2]), 'PX', reservation_ttl)
end
if corrupt > 0 then append(corrupt) end
return reply
