"""A till that crashes: every sale is stored once, though it is sent more than once.

The log is a folder in this process. With ``at="http://127.0.0.1:7654"`` the same code uses a server (`onefold serve
ingest`).

Run it: python examples/producers.py
"""

import tempfile
from pathlib import Path

from onefold import Kind, Misuse, Producer, Topics

SALES = [b"1 coffee", b"2 teas", b"1 cake", b"3 coffees", b"1 tea"]


def sell(topics: Topics, crash_after: int) -> None:
    """The till's program: continues after the last sale that is stored, and knows nothing else of earlier runs."""
    with Producer("sales", at=topics, name="till-1") as till:
        start = till.last_sequence_id + 1
        print(f"epoch {till.epoch}: goes on with sale {start}")
        futures = [till.send_async(sale) for sale in SALES[start : start + crash_after]]
        for future in futures:
            receipt = future.result()  # now it is on disk
            print(f"  {receipt.verdict} {receipt.reason}")


def main() -> None:
    """Crash twice, resend a sale that is stored, and run two tills of one name."""
    with tempfile.TemporaryDirectory() as folder, Topics(Path(folder)) as topics:
        for crash_after in (2, 1, 5):
            sell(topics, crash_after)

        # The response was lost: the sale is sent again with its sequence id, and is not stored again.
        with Producer("sales", at=topics, name="till-1", initial_sequence_id=4) as till:
            print(f"again: {till.send(SALES[4]).verdict}")
            with Producer("sales", at=topics, name="till-1"):  # started twice by mistake: the newer one wins
                try:
                    till.send(b"from a zombie")
                except Misuse as error:
                    print(error)

        stored = [r.payload for r in topics.topic("sales").log.read(0) if r.kind == Kind.MESSAGE]
        print("each once, in order:", stored == SALES)


if __name__ == "__main__":
    main()
