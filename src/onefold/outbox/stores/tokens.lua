-- The tokens of messages in flight: a batch of one verb, executed atomically.
--
-- KEYS     realm, tokens, names, ages, children
-- ARGV     the verb, the realm that the caller knows, the verb's arguments as JSON
-- returns  JSON
--
-- realm     string   the name of this store, set once
-- tokens    hash     token -> JSON [destination, parent, attempt, at_ms]; a parent of "" is none, at_ms is a string
-- names     zset     every token with score 0: in the order of their bytes
-- ages      zset     every token with at_ms
-- children  zset     those with a parent, as "<bytes of the parent>:<parent>:<token>" with score 0
--
-- A store that was emptied has another realm, or none. A missing token means nothing there, and to take its message for
-- a duplicate would lose it: every verb is refused.

local REALM, TOKENS, NAMES, AGES, CHILDREN = unpack(KEYS)
local verb, realm, asked = ARGV[1], ARGV[2], cjson.decode(ARGV[3])

local function family(parent)
    return string.format('%d:%s:', #parent, parent)
end

local function record(token)
    local text = redis.call('HGET', TOKENS, token)
    if text then
        return cjson.decode(text)
    end
end

local function put(token, destination, parent, attempt, at_ms)
    redis.call('HSET', TOKENS, token, cjson.encode({destination, parent, attempt, at_ms}))
end

local function drop(token, parent)
    redis.call('HDEL', TOKENS, token)
    redis.call('ZREM', NAMES, token)
    redis.call('ZREM', AGES, token)
    if parent ~= '' then
        redis.call('ZREM', CHILDREN, family(parent) .. token)
    end
end

local verbs = {}

-- [realm]: the realm that is stored; if there is none, this one is stored
function verbs.realm()
    redis.call('SET', REALM, asked[1], 'NX')
    return {redis.call('GET', REALM)}
end

-- [token, ...]: for each whether it exists
function verbs.holds()
    local exists = {}
    for i, token in ipairs(asked) do
        exists[i] = redis.call('HEXISTS', TOKENS, token) == 1
    end
    return exists
end

-- [at_ms, [parent, attempt, guarded, [[token, destination], ...]], ...]: for each birth, whether it was done
function verbs.create()
    local at_ms, done = asked[1], {}
    for i = 2, #asked do
        local parent, attempt, guarded, children = unpack(asked[i])
        done[i - 1] = not guarded or redis.call('HEXISTS', TOKENS, parent) == 1
        for _, child in ipairs(done[i - 1] and children or {}) do
            local token, destination = unpack(child)
            if redis.call('HEXISTS', TOKENS, token) == 0 then
                put(token, destination, parent, attempt, at_ms)
                redis.call('ZADD', NAMES, 0, token)
                redis.call('ZADD', AGES, at_ms, token)
                if parent ~= '' then
                    redis.call('ZADD', CHILDREN, 0, family(parent) .. token)
                end
            end
        end
    end
    return done
end

-- [[token, attempt], ...]: remove the tokens; of their children, clear the parent of this attempt's, remove the others
--
-- Writes come before removals: a server that is out of memory refuses the first write, and nothing is changed.
function verbs.remove()
    for _, removal in ipairs(asked) do
        local token, winner = unpack(removal)
        local kin, losers = family(token), {}
        -- ";" follows ":", so this is every member with the prefix of the family. Tokens without a parent have none.
        local children = token ~= '' and redis.call('ZRANGEBYLEX', CHILDREN, '[' .. kin, '(' .. kin:sub(1, -2) .. ';')
        for _, member in ipairs(children or {}) do
            local child = member:sub(#kin + 1)
            local destination, _, attempt, at_ms = unpack(record(child))
            if attempt == winner then
                put(child, destination, '', attempt, at_ms)
                redis.call('ZREM', CHILDREN, member)
            else
                losers[#losers + 1] = child
            end
        end
        for _, child in ipairs(losers) do
            drop(child, token)
        end
        local fields = record(token)
        if fields then
            drop(token, fields[2])
        end
    end
    return {}
end

-- [token, parent or null]: remove it if it has this parent (null: any); whether it was removed
function verbs.discard()
    local token, parent = asked[1], asked[2]
    local fields = record(token)
    if not fields or (parent ~= cjson.null and fields[2] ~= parent) then
        return {false}
    end
    drop(token, fields[2])
    return {true}
end

-- [after, limit]: [token, destination, parent, attempt, at_ms] of each, by name
function verbs.listed()
    local listed = {}
    for i, token in ipairs(redis.call('ZRANGEBYLEX', NAMES, '(' .. asked[1], '+', 'LIMIT', 0, asked[2])) do
        listed[i] = {token, unpack(record(token))}
    end
    return listed
end

-- [member, limit]: how many children follow this one, up to the limit; the last of them; and those whose parent has no
-- token, as above. In order of parent, not of name.
function verbs.orphans()
    local members = redis.call('ZRANGEBYLEX', CHILDREN, asked[1], '+', 'LIMIT', 0, asked[2])
    local orphans = {}
    for _, member in ipairs(members) do
        local length, from = member:match('^(%d+):()')
        local token = member:sub(from + length + 1)
        if redis.call('HEXISTS', TOKENS, member:sub(from, from + length - 1)) == 0 then
            orphans[#orphans + 1] = {token, unpack(record(token))}
        end
    end
    return {#members, members[#members] or '', orphans}
end

-- []: how many tokens there are, and when the oldest was made
function verbs.live()
    return {redis.call('HLEN', TOKENS), redis.call('ZRANGE', AGES, 0, 0, 'WITHSCORES')[2] or cjson.null}
end

if verb ~= 'realm' and redis.call('GET', REALM) ~= realm then
    return redis.error_reply('REALM ' .. (redis.call('GET', REALM) or ''))
end
return cjson.encode(verbs[verb]())
