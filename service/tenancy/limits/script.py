"""The rules of `windows` in Lua, for Redis: a request is one call of one script, which nothing else can come between.

A window is a hash from a bucket's number to `count:leaves_ms`, what is held a
sorted set of names by the end of their leases. The time is the server's own, so
that replicas whose clocks differ agree; a time above 0 in its place is for tests.
"""

from __future__ import annotations

from typing import Final

__all__ = ["RENEW", "SETTLE", "TAKE"]

_PARTS: Final = """
local function now_of(given)
  if tonumber(given) > 0 then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function add(key, count, bucket_ms, keep_ms, now)
  local bucket = math.floor(now / bucket_ms)
  local leaves = keep_ms > 0 and now + keep_ms or (bucket + 1) * bucket_ms
  local held = redis.call('HGET', key, whole(bucket))
  if held then count = count + tonumber(string.match(held, '^%d+')) end
  redis.call('HSET', key, whole(bucket), whole(count) .. ':' .. whole(leaves))
  -- Behind its end, so that a test's time need not be the server's.
  redis.call('PEXPIRE', key, whole(leaves - now + 60000))
end
"""

# KEYS: a counter each. ARGV: time, member, lease_ms, and for each key most, cost, bucket_ms (0: held), keep_ms.
# Returns taken, time, and for each key used, reset_ms, wait_ms.
TAKE: Final = (
    _PARTS
    + """
local function state_of(key, most, cost, bucket_ms, now)
  if bucket_ms == 0 then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
    local used = redis.call('ZCARD', key)
    return used, 0, used + cost <= most and 0 or -1
  end
  local flat, live, used, reset = redis.call('HGETALL', key), {}, 0, 0
  for at = 1, #flat, 2 do
    local count, leaves = string.match(flat[at + 1], '^(%d+):(%d+)$')
    count, leaves = tonumber(count), tonumber(leaves)
    if leaves <= now then
      redis.call('HDEL', key, flat[at])
    elseif count > 0 then
      used = used + count
      reset = math.max(reset, leaves - now)
      live[#live + 1] = {leaves, count}
    end
  end
  if used + cost <= most then return used, reset, 0 end
  table.sort(live, function(a, b) return a[1] < b[1] end)
  local left = used
  for _, bucket in ipairs(live) do
    left = left - bucket[2]
    if left + cost <= most then return used, reset, bucket[1] - now end
  end
  return used, reset, -1
end

local now, member, lease_ms = now_of(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local answer, fits = {1, now}, true
local function look(at, key)
  local most, cost, bucket_ms = tonumber(ARGV[at * 4]), tonumber(ARGV[at * 4 + 1]), tonumber(ARGV[at * 4 + 2])
  local used, reset, wait = state_of(key, most, cost, bucket_ms, now)
  answer[at * 3], answer[at * 3 + 1], answer[at * 3 + 2] = used, reset, wait
  fits = fits and wait == 0
end
for at, key in ipairs(KEYS) do look(at, key) end
if not fits then
  answer[1] = 0
  return answer
end
for at, key in ipairs(KEYS) do
  local cost, bucket_ms, keep_ms = tonumber(ARGV[at * 4 + 1]), tonumber(ARGV[at * 4 + 2]), tonumber(ARGV[at * 4 + 3])
  if bucket_ms == 0 then
    redis.call('ZADD', key, whole(now + lease_ms), member)
    redis.call('PEXPIRE', key, whole(lease_ms + 60000))
  else
    add(key, cost, bucket_ms, keep_ms, now)
  end
  look(at, key)
  answer[at * 3 + 2] = 0
end
return answer
"""
)

# KEYS: windows, and behind them sets. ARGV: time, member, number of windows, and for each of them bucket, delta,
# bucket_ms, keep_ms.
SETTLE: Final = (
    _PARTS
    + """
local now, member, windows = now_of(ARGV[1]), ARGV[2], tonumber(ARGV[3])
for at, key in ipairs(KEYS) do
  if at > windows then
    redis.call('ZREM', key, member)
  else
    local bucket, delta = ARGV[at * 4], tonumber(ARGV[at * 4 + 1])
    local held = redis.call('HGET', key, bucket)
    local count, leaves = string.match(held or '', '^(%d+):(%d+)$')
    if held and tonumber(leaves) > now then
      redis.call('HSET', key, bucket, whole(math.max(0, tonumber(count) + delta)) .. ':' .. leaves)
    elseif delta > 0 then
      add(key, delta, tonumber(ARGV[at * 4 + 2]), tonumber(ARGV[at * 4 + 3]), now)
    end
  end
end
return {}
"""
)

# KEYS: one set. ARGV: time, lease_ms, and the names that go on. One that had gone, or its server, is back by this.
RENEW: Final = (
    _PARTS
    + """
local now, lease_ms = now_of(ARGV[1]), tonumber(ARGV[2])
for at = 3, #ARGV do redis.call('ZADD', KEYS[1], whole(now + lease_ms), ARGV[at]) end
redis.call('PEXPIRE', KEYS[1], whole(lease_ms + 60000))
return {}
"""
)
