-- Registers a node and lists the live ones. A member is a node's id and its policies, one line
-- each; its score is the time of the last registration. Decisions need each of these commands too.
-- KEYS: the registry. ARGV: the id, the member, the lifetime in microseconds, the most members.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key, id, member = KEYS[1], ARGV[1] .. '\n', ARGV[2]
local lifetime, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local known = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local live = 0
for i = 1, #known, 2 do
  local age = now - tonumber(known[i + 1])
  local is_own = string.sub(known[i], 1, #id) == id
  -- After the server's clock went back, a dead node may seem to have registered in the future.
  if is_own or age >= lifetime or age <= -lifetime then
    redis.call('ZREM', key, known[i])
  else
    live = live + 1
  end
end
if live < most then
  redis.call('ZADD', key, string.format('%.0f', now), member)
end
redis.call('PEXPIRE', key, string.format('%.0f', math.ceil(lifetime / 1000)))
local nodes = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, most)
table.insert(nodes, 1, string.format('%.0f', now))
return nodes
