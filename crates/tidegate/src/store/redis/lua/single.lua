-- One charge on one key: the common case, without what batches need.
local tariff = family_tariff(1)
local state = family_open(KEYS[1], tariff)
if state.corrupt then redis.call('DEL', KEYS[1]) end
say(1)
family_answer(state, tariff, KEYS[1])
if not family_try(state, tariff, true) then
  reply[2] = 0
  family_deny(state, tariff)
end
if state.dirty then family_save(KEYS[1], state, tariff) end
if corrupt > 0 then say(corrupt) end
return reply
