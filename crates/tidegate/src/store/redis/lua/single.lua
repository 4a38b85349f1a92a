-- One charge on one key: the common case, without the code for batches.
local args = family_args(1)
local state = family_open(KEYS[1], args)
if state.corrupt then redis.call('DEL', KEYS[1]) end
append(1)
family_answer(state, args, KEYS[1])
if not family_try(state, args, true) then
  reply[2] = 0
  family_deny(state, args)
end
if state.dirty then family_save(KEYS[1], state, args) end
if corrupt > 0 then append(corrupt) end
return reply
