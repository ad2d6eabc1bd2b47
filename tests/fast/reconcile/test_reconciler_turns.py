"""Whose turn it is at the server's threads."""

import asyncio
import threading

import pytest

from onefold.reconcile.server import Account, AnswerTurns


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def test_whoever_has_used_least_is_next_and_equals_keep_their_order():
    async def main():
        turns, gate = AnswerTurns(threads=1), threading.Event()
        done: list[str] = []
        holding = asyncio.create_task(turns.run(Account(), gate.wait, 20))
        await asyncio.sleep(0)
        accounts = {"greedy": Account(9.0), "new": Account(), "also new": Account(), "middling": Account(1.0)}
        waiting = [asyncio.create_task(turns.run(account, done.append, name)) for name, account in accounts.items()]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(holding, *waiting)
        turns.close()
        assert done == ["new", "also new", "middling", "greedy"]
        assert accounts["greedy"].used_s > 9.0

    asyncio.run(main())


def test_who_goes_while_waiting_or_working_takes_no_thread_with_him():
    async def main():
        turns, gate = AnswerTurns(threads=1), threading.Event()
        working = asyncio.create_task(turns.run(Account(), gate.wait, 20))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(turns.run(Account(), print))
        await asyncio.sleep(0)
        waiting.cancel()
        working.cancel()
        await until(lambda: waiting.done() and working.done())
        gate.set()
        assert await turns.run(Account(), lambda: 5) == 5
        called = asyncio.create_task(turns.run(Account(), lambda: 6))
        called.cancel()
        await until(called.done)
        assert await turns.run(Account(), lambda: 7) == 7
        turns.close()

    asyncio.run(main())


def test_an_error_is_the_callers_and_the_thread_is_free_again():
    async def main():
        turns = AnswerTurns(threads=1)
        for _ in range(3):
            with pytest.raises(ValueError, match="invalid literal"):
                await turns.run(Account(), int, "x")
        assert await turns.run(Account(), int, "5") == 5
        turns.close()

    asyncio.run(main())
