-- The server's clock, read once: before Redis 7.2 it moves while a script runs.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slack = 1
