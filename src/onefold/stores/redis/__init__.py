"""Redis, through redis-py: what several machines share.

counter_store.py  the counters of devices (lorawan), and what of their messages is unfinished
claim.lua         its one script: a batch of claims in one step of the server
tokens.py         the tokens of messages in flight (outbox)
tokens.lua        its one script: a batch of any verb in one step of the server
durability.py     which settings of a server can lose what it has answered
"""
