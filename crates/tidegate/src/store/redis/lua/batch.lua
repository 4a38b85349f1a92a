-- Many charges, one per key, in order. A group of charges is taken all or nothing.
-- ARGV: how many tariffs; each tariff as family, operation and the family's own numbers, and the
-- time of the take that an `undo` takes back; then one
-- number per key: ((times - 1) * 256 + tariff - 1) * 2 + 1 if the next key is of the same group.
-- Reply: the time, and per charge how often it was admitted and the state it was decided on.
local tariffs, at, early = {}, 2, false
for number = 1, ARGV[1] + 0 do
  local family, op = families[ARGV[at]], ARGV[at + 1]
  local tariff
  tariff, at = family.tariff(at + 2)
  tariff.family, tariff.op, tariff.takes = family, op, op == 'take'
  if op == 'undo' then
    tariff.taken_at, at = tonumber(ARGV[at]), at + 1
  end
  tariffs[number] = tariff
  -- Lists and sets tell all they keep, and may be written before the end.
  early = early or family.dump
end

-- States are read when first met and written once at the end, so a read that fails, fails the call
-- before it has changed anything.
local states, order = {}, {}

local function save(key)
  local state = states[key]
  if state.dirty then state.family.save(key, state, state.tariff) end
end

local function open(key, tariff)
  local state = states[key]
  if not state or state.length ~= tariff.length then
    if state then save(key) else order[#order + 1] = key end
    state = tariff.family.open(key, tariff)
    state.family, state.tariff = tariff.family, tariff
    states[key] = state
  end
  -- What only looks changes nothing, not even this.
  if state.corrupt and tariff.op ~= 'read' and tariff.op ~= 'dump' then
    redis.call('DEL', key)
    state.corrupt = nil
  end
  return state
end

-- Repeated takes on one key: all are decided on the first answer.
local function decide_alone(key, tariff, times)
  local family, state, admitted = tariff.family, open(key, tariff), 0
  say(0)
  local place = said
  family.answer(state, tariff, key)
  while admitted < times and family.try(state, tariff, tariff.takes) do
    admitted = admitted + 1
  end
  if tariff.takes then
    for _ = admitted + 1, times do family.deny(state, tariff) end
  end
  reply[place] = admitted
end

-- How a state stands, whatever fits.
local nothing = { units = 0, limit = -1 }

-- What is never denied. Lists and sets change at once; they tell how they stand afterwards.
local function carry_out(key, tariff)
  local family, state = tariff.family, open(key, tariff)
  local operate = family[tariff.op]
  if tariff.op == 'dump' then
    -- What was taken a moment ago is told as it is kept.
    if operate and state.dirty then
      save(key)
      states[key] = nil
      state = open(key, tariff)
    end
    if operate then return operate(state, tariff, key) end
    return family.answer(state, tariff, key)
  end
  if not family.dump then
    family.answer(state, tariff, key)
    return operate(state, tariff)
  end
  local stale, unbooked, lease = operate(state, tariff, key)
  if stale then
    states[key] = family.open(key, tariff)
    state = states[key]
    state.family, state.tariff = family, tariff
  end
  say(unbooked or 0)
  say(lease or 0)
  family.answer(state, nothing, key)
end

-- All of charges first..last, or none. If one is denied, each says how it stands on its own, and
-- only those that deny leave what a denial leaves.
local function decide_together(first, last, tariff_of)
  local kept, seen, allowed, start = {}, {}, true, said
  for i = first, last do
    local key, tariff = KEYS[i], tariff_of(i)
    local state = open(key, tariff)
    if not kept[key] then
      kept[key] = {}
      for field, value in pairs(state) do kept[key][field] = value end
    end
    local place = said + 1
    say(0)
    tariff.family.answer(state, tariff, key)
    if tariff.family.try(state, tariff, tariff.takes) then reply[place] = 1 else allowed = false end
    seen[i] = { reply[place], unpack(reply, place + 1, said) }
  end
  if allowed then return end
  for i = said, start + 1, -1 do reply[i] = nil end
  said = start
  for key, fields in pairs(kept) do
    local state = states[key]
    for field in pairs(state) do state[field] = nil end
    for field, value in pairs(fields) do state[field] = value end
  end
  for i = first, last do
    local key, tariff = KEYS[i], tariff_of(i)
    local family, state = tariff.family, states[key]
    local fitted, fits = seen[i][1] == 1, family.try(state, tariff, false)
    if fits and not fitted then
      -- Only an earlier charge on the same key stood in its way.
      for _, number in ipairs(seen[i]) do say(number) end
    else
      -- 2: it fitted, but the denial of an earlier charge on the same key was counted.
      say(fits and 1 or fitted and 2 or 0)
      family.answer(state, tariff, key)
      if not fits and tariff.takes then family.deny(state, tariff) end
    end
  end
end

local function word(i)
  local number = ARGV[at + i - 1] + 0
  local more = number % 2
  number = (number - more) / 2
  local tariff = number % 256
  return tariffs[tariff + 1], (number - tariff) / 256 + 1, more == 1
end

if early then
  for i = 1, #KEYS do
    if not states[KEYS[i]] then open(KEYS[i], (word(i))) end
  end
end
local i = 1
while i <= #KEYS do
  local tariff, times, more = word(i)
  if more then
    local first = i
    while more do
      i = i + 1
      more = select(3, word(i))
    end
    decide_together(first, i, function(n) return (word(n)) end)
  elseif tariff.takes or tariff.op == 'read' then
    decide_alone(KEYS[i], tariff, times)
  else
    carry_out(KEYS[i], tariff)
  end
  i = i + 1
end
for _, key in ipairs(order) do save(key) end
if corrupt > 0 then say(corrupt) end
return reply
