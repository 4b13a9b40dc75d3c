-- Every call of a mailbox is one run of this script, and Redis runs one script at a time: nothing is seen half done.
-- KEYS[1] is the mailbox, ARGV[1] the call. The time is the server's.
--
-- The rules are those of core's machine (core/src/mailbox), which the tests compare this with. By id of a message:
--   content, group, count (hand-outs)    hashes, as long as the message is there, dead or not
--   fence                                hash, from a hand-out until it is settled
--   held                                 hash, from a hand-out until its lease ends
--   ready                                sorted by id: may be handed out now
--   timed                                sorted by instant: the end of a lease or of a delay
--   lines                                "group NUL id": who waits in a group, first come first
--   dead, why                            dead letters in the order in which they died
--   ended                                sorted by fence: how the last hand-outs were settled
-- Nothing here has a time to live.

local REMEMBERED_ENDS = 4096
-- Leases and delays that end in one run. What is beyond it ends in the next.
local MOST_DUE = 10000

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function text(number) return string.format('%.0f', number) end
local function key(box, part) return box .. ':' .. part end
local function line_of(group, id) return group .. '\0' .. string.format('%016.0f', id) end
local function ring(box) redis.call('PUBLISH', key(box, 'bell'), '') end

local function first_in_line(box, group)
    local found = redis.call('ZRANGEBYLEX', key(box, 'lines'), '[' .. group .. '\0', '(' .. group .. '\1', 'LIMIT', 0, 1)
    return found[1] and text(tonumber(string.sub(found[1], #group + 2)))
end

local function add(box, content, group)
    local id = text(redis.call('INCR', key(box, 'next')))
    redis.call('HSET', key(box, 'content'), id, content)
    if group ~= '' then
        redis.call('HSET', key(box, 'group'), id, group)
        redis.call('ZADD', key(box, 'lines'), 0, line_of(group, id))
    end
    if group == '' or first_in_line(box, group) == id then
        redis.call('ZADD', key(box, 'ready'), id, id)
    end
    return id
end

local function is_full(box, max) return redis.call('HLEN', key(box, 'content')) >= max end

-- Takes a message out of all that is about handing it out; the next of its group may come.
local function withdraw(box, id)
    redis.call('ZREM', key(box, 'ready'), id)
    redis.call('ZREM', key(box, 'timed'), id)
    redis.call('HDEL', key(box, 'held'), id)
    redis.call('HDEL', key(box, 'fence'), id)
    local group = redis.call('HGET', key(box, 'group'), id)
    if group then
        redis.call('ZREM', key(box, 'lines'), line_of(group, id))
        local next_id = first_in_line(box, group)
        if next_id then redis.call('ZADD', key(box, 'ready'), next_id, next_id) end
    end
end

local function forget(box, id)
    for _, part in ipairs({ 'content', 'group', 'count', 'why' }) do redis.call('HDEL', key(box, part), id) end
end

local function bury(box, id, why)
    withdraw(box, id)
    redis.call('HSET', key(box, 'why'), id, why)
    redis.call('ZADD', key(box, 'dead'), redis.call('INCR', key(box, 'next')), id)
end

local function end_what_is_due(box)
    local due = redis.call('ZRANGEBYSCORE', key(box, 'timed'), '-inf', text(now), 'LIMIT', 0, MOST_DUE)
    for _, id in ipairs(due) do
        redis.call('ZREM', key(box, 'timed'), id)
        redis.call('HDEL', key(box, 'held'), id)
        redis.call('ZADD', key(box, 'ready'), id, id)
    end
end

local calls = {}

-- max messages, then content and group of each. Answers with ids, or 0 where it is full.
function calls.send(box)
    local answers = {}
    for at = 3, #ARGV, 2 do
        answers[#answers + 1] = is_full(box, tonumber(ARGV[2])) and '0' or add(box, ARGV[at], ARGV[at + 1])
    end
    ring(box)
    return answers
end

-- most messages, lease, most deliveries. Answers with hand-outs, and with ms until one more may come, or -1.
function calls.receive(box)
    local max, lease, max_deliveries = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    end_what_is_due(box)
    local handed, buried = {}, 0
    while #handed < max and buried < MOST_DUE do
        local id = redis.call('ZRANGE', key(box, 'ready'), 0, 0)[1]
        if not id then break end
        local count = tonumber(redis.call('HGET', key(box, 'count'), id) or 0)
        if count >= max_deliveries then
            bury(box, id, 'handed out ' .. count .. ' times without success')
            buried = buried + 1
        else
            local fence = text(redis.call('INCR', key(box, 'next')))
            redis.call('ZREM', key(box, 'ready'), id)
            redis.call('ZADD', key(box, 'timed'), text(now + lease), id)
            redis.call('HSET', key(box, 'held'), id, text(now))
            redis.call('HSET', key(box, 'fence'), id, fence)
            redis.call('HSET', key(box, 'count'), id, count + 1)
            handed[#handed + 1] = { id, fence, count + 1, redis.call('HGET', key(box, 'content'), id) }
        end
    end
    local soon = redis.call('ZRANGE', key(box, 'timed'), 0, 0, 'WITHSCORES')[2]
    if redis.call('ZCARD', key(box, 'ready')) > 0 then soon = now end
    return { handed, soon and math.max(0, tonumber(soon) - now) or -1 }
end

-- id, fence and ms of each. Answers with ms that are left of each lease, or -1 for a stale one.
function calls.extend(box)
    local answers = {}
    for at = 2, #ARGV, 3 do
        local id, fence, span = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
        local ends = tonumber(redis.call('ZSCORE', key(box, 'timed'), id) or 0)
        if ends > now and redis.call('HGET', key(box, 'fence'), id) == fence then
            ends = math.max(ends, now + span)
            redis.call('ZADD', key(box, 'timed'), text(ends), id)
            answers[#answers + 1] = ends - now
        else
            answers[#answers + 1] = -1
        end
    end
    return answers
end

-- How a hand-out ends: fields id, fence, kind, detail (ms or why), mailbox, content and group of a reply.
local function settle(box, max, at)
    local id, fence, kind, detail = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local said = id .. ' ' .. fence .. ' ' .. kind .. ' ' .. detail
    if redis.call('ZSCORE', key(box, 'ended'), said) then return 'done' end
    if redis.call('HGET', key(box, 'fence'), id) ~= fence then return 'stale' end
    if kind == 'ack' then
        local reply_to = ARGV[at + 4]
        if reply_to ~= '' then
            if is_full(reply_to, max) then return 'full' end
            add(reply_to, ARGV[at + 5], ARGV[at + 6])
            ring(reply_to)
        end
        withdraw(box, id)
        forget(box, id)
    elseif kind == 'dead' then
        bury(box, id, detail)
    else
        redis.call('HDEL', key(box, 'fence'), id)
        redis.call('HDEL', key(box, 'held'), id)
        redis.call('ZREM', key(box, 'ready'), id)
        redis.call('ZADD', key(box, 'timed'), text(now + tonumber(detail)), id)
        if kind == 'release' then redis.call('HINCRBY', key(box, 'count'), id, -1) end
    end
    redis.call('ZADD', key(box, 'ended'), fence, said)
    redis.call('ZREMRANGEBYRANK', key(box, 'ended'), 0, -1 - REMEMBERED_ENDS)
    return 'done'
end

function calls.settle(box)
    local answers = {}
    for at = 3, #ARGV, 7 do answers[#answers + 1] = settle(box, tonumber(ARGV[2]), at) end
    ring(box)
    return answers
end

function calls.depth(box)
    end_what_is_due(box)
    local dead, held = redis.call('ZCARD', key(box, 'dead')), redis.call('HLEN', key(box, 'held'))
    return { redis.call('HLEN', key(box, 'content')) - dead - held, held, dead }
end

function calls.dead_letters(box)
    local answers = {}
    for _, id in ipairs(redis.call('ZRANGE', key(box, 'dead'), 0, tonumber(ARGV[2]) - 1)) do
        local count = tonumber(redis.call('HGET', key(box, 'count'), id) or 0)
        local why = redis.call('HGET', key(box, 'why'), id)
        answers[#answers + 1] = { id, count, why, redis.call('HGET', key(box, 'content'), id) }
    end
    return answers
end

function calls.replay(box)
    local ids = redis.call('ZRANGE', key(box, 'dead'), 0, tonumber(ARGV[2]) - 1)
    for _, id in ipairs(ids) do
        local content = redis.call('HGET', key(box, 'content'), id)
        local group = redis.call('HGET', key(box, 'group'), id) or ''
        redis.call('ZREM', key(box, 'dead'), id)
        forget(box, id)
        add(box, content, group)
    end
    ring(box)
    return #ids
end

return calls[ARGV[1]](KEYS[1])
