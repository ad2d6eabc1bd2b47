-- Decides a batch of claims in order, in one atomic step; before that it deletes the finished messages.
--
-- KEYS     the entry of each claim, then the outbox of each server that is named in ARGV[1], then the nonces of devices
-- ARGV[1]  JSON [claims, servers]. A claim is [device, server, fcnt_up, fcnt_down, wants_down, restarted_after or null,
--          keep_ms, body, number, frame, nonce or null, which of KEYS its device's nonces are]; keep_ms 0 is for ever, the
--          number is a string. A server is [its name, and the numbers of those of its claims that are finished].
-- returns  JSON, for each claim [won, the owner now, its fcnt_up, the fcnt_down to use (0: none), the owner before if it
--          was another (else null)]
--
-- The entry of a device is one string, "fcnt_up fcnt_down =frame server" (before frames were kept: "fcnt_up fcnt_down
-- server"). A lost claim writes nothing; a won one overwrites the string, with its own expiry. A device that joins has a
-- set beside it: the nonces that it has used.
--
-- An outbox is one hash, from the number of a claim to JSON [device, fcnt_up, the body that its server is to store
-- upstream]. A won claim adds its body, unless that is empty. A hash does not expire, so a body outlives its entry. A
-- claim that is in the outbox already was won: its answer was lost, and this is the retry, which wins again, even if a
-- later frame was counted since.
--
-- The rules are `decide` and `decide_join` in lorawan/rules.py, and a property test holds them equal. Lua counts in doubles,
-- exact up to 2^53, and writes 14 digits into JSON; counters have 32 bits, which is 10 digits.

local FIRST_MESSAGE_MAX = 1  -- as in lorawan/rules.py
local LATE_MAX = 1000  -- as in lorawan/rules.py
local claims, servers = unpack(cjson.decode(ARGV[1]))

local outboxes = {}
for i, finished in ipairs(servers) do
    local outbox = KEYS[#claims + i]
    outboxes[finished[1]] = outbox
    if #finished > 1 then
        redis.call('HDEL', outbox, unpack(finished, 2))
    end
end

local answers = {}
for i, claim in ipairs(claims) do
    local key = KEYS[i]
    local device, server, up, down, wants_down, after, keep_ms, body, number, frame, nonce, nonces = unpack(claim)
    local joins = nonce ~= cjson.null

    local known_up, known_down, known_frame, owner
    local known = redis.call('GET', key)
    if known then
        known_up, known_down, known_frame, owner = string.match(known, '^(%d+) (%d+) =(%x*) (.*)$')
        if not known_up then
            known_up, known_down, owner = string.match(known, '^(%d+) (%d+) (.*)$')
        end
        if not known_up then
            return redis.error_reply('ERR ' .. key .. ' holds something else than counters')
        end
        known_up, known_down = tonumber(known_up), tonumber(known_down)
    end
    local previous = owner and owner ~= server and owner or cjson.null
    if known_up and after ~= cjson.null and up < known_up and (owner == server
        or (known_up > FIRST_MESSAGE_MAX and (known_up >= after or known_up - up > LATE_MAX))) then
        known_up, known_down = nil, nil
    end

    local lost = known_up and (up < known_up or (up == known_up and server ~= owner))
    if joins then
        lost = known or redis.call('SISMEMBER', KEYS[nonces], nonce) == 1
        owner, known_up, known_down, previous = owner or '', up, 0, cjson.null
        down, wants_down, frame, known_frame = 0, false, '', ''
    end

    if lost then
        local kept = body ~= '' and redis.call('HGET', outboxes[server], number)
        local message = kept and cjson.decode(kept)
        local was_won = message and message[1] == device and message[2] == up or false
        answers[i] = {was_won, owner, known_up, 0, cjson.null}
    else
        down = math.max(down, known_down or 0)
        if wants_down then
            down = down + 1
        end
        if frame == '' and up == known_up then
            frame = known_frame or ''
        end
        local value = string.format('%.0f %.0f =', up, down) .. frame .. ' ' .. server
        if keep_ms == 0 then
            redis.call('SET', key, value)
        else
            redis.call('SET', key, value, 'PX', string.format('%.0f', keep_ms))
        end
        if joins then
            redis.call('SADD', KEYS[nonces], nonce)
        end
        if body ~= '' then
            redis.call('HSET', outboxes[server], number, cjson.encode({device, up, body}))
        end
        answers[i] = {true, server, up, wants_down and down or 0, previous}
    end
end
return cjson.encode(answers)
