"""A TCP proxy that cuts its connections after so many bytes in one direction, at random, until it has cut enough."""

import asyncio
import random
import threading


class CuttingProxy:
    def __init__(self, target_port, seed=0, cuts=0):
        self.cuts = 0
        self.target_port = target_port
        self._chance, self._cuts_max = random.Random(seed), cuts
        self._held = False
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.cut_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.close()

    def cut_all(self):
        """Cut what is connected now."""

        async def cut():
            for writer in self._open:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result()

    def hold(self):
        """From now on take bytes, and pass none on."""
        self._held = True

    async def _connected(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        budgets = [1 << 60, 1 << 60]
        if self.cuts < self._cuts_max:
            budgets[self._chance.randrange(2)] = int(2 ** self._chance.uniform(8, 16))
        await asyncio.gather(self._pump(reader, far_writer, budgets[0]), self._pump(far_reader, writer, budgets[1]))
        for each in (writer, far_writer):
            each.transport.abort()
            self._open.discard(each)

    async def _pump(self, reader, writer, budget):
        try:
            while data := await reader.read(65_536):
                if self._held:
                    continue
                writer.write(data[:budget])
                await writer.drain()
                budget -= len(data)
                if budget <= 0:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for each in list(self._open):
            if each is writer or each.get_extra_info("peername") is None:
                each.transport.abort()
